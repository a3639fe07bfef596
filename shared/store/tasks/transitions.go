package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// insertDone leaves out tasks that already have a row in task_done: a unique violation would make the changes of other
// tasks fail. Only an attacker who controls a function can write such a row.
var insertDone = store.BulkStatement[task.Task]{Columns: changedDone, Text: `
insert into task_done (@columns)
select * from unnest(@arrays) as t (@columns)
where not exists (select from task_done d where d.id = t.id offset 0)`}

var updateLive = store.BulkStatement[task.Task]{Columns: changedLive, Text: `
update task_live l set updated_at = now(), @set
from unnest(@arrays) as t (@columns)
where l.id = t.id`}

// reviveSQL makes finished tasks live, and updateLive then sets their new states.
const reviveSQL = `
insert into task_live (` + liveBodyNames + `, ` + outcomeNames + `, claimed_by, state, callback)
select ` + liveBodyNames + `, ` + outcomeNames + `, claimed_by, 1, callback_url is not null
from task_done join tasks using (id)
where id = any($1::uuid[])`

const (
	deleteLiveSQL = `delete from task_live where id = any($1::uuid[])`
	deleteDoneSQL = `delete from task_done where id = any($1::uuid[])`
)

// adjustTotalsSQL corrects the stored totals of a day when a counted result of that day is withdrawn: $1 is the time of
// the result, $2 its status, and $3 is true for a subscribe message. lockTotalsSQL first waits for a count under way.
// An attacker who controls a function can write any total; greatest prevents an overflow.
const (
	TotalsLock      = "7310001" // advisory lock
	lockTotalsSQL   = `select pg_advisory_xact_lock_shared(` + TotalsLock + `)`
	adjustTotalsSQL = `
update task_totals set
    succeeded = greatest(succeeded, -1000000000000000000) - case when $2 = 2 and not $3 then 1 else 0 end, failed = greatest(failed, -1000000000000000000) - case when $2 = 3 and not $3 then 1 else 0 end,
    subscribe_succeeded = greatest(subscribe_succeeded, -1000000000000000000) - case when $2 = 2 and $3 then 1 else 0 end,
    subscribe_failed = greatest(subscribe_failed, -1000000000000000000) - case when $2 = 3 and $3 then 1 else 0 end
where day = ($1::timestamptz at time zone 'UTC')::date and (counted_to is null or $1::timestamptz < counted_to)`
)

// QueueChanges adds the statements that apply the changes and write their events. It sorts changes. Call Notify of the
// returned notifier after the commit.
func (st *Store) QueueChanges(batch *pgx.Batch, changes []Change) *store.Notifier {
	// Rows of task_totals are locked in order of day, to avoid deadlocks.
	slices.SortStableFunc(changes, func(a, b Change) int { return a.Before.FinishedAt.Compare(b.Before.FinishedAt) })
	var live, done []task.Task                      // the changed tasks
	var leavingLive, leavingDone, revived []task.ID // revived tasks are also in leavingDone
	for _, c := range changes {
		final, wasFinal := c.After.State.Final(), c.Before.State.Final()
		if wasFinal {
			if leavingDone == nil {
				batch.Queue(lockTotalsSQL)
			}
			batch.Queue(adjustTotalsSQL, c.Before.FinishedAt, c.Before.State.Status(), isSubscribe(c.Before))
			leavingDone = append(leavingDone, c.After.ID)
		}
		switch {
		case final && wasFinal:
			done = append(done, c.After)
		case final:
			done, leavingLive = append(done, c.After), append(leavingLive, c.After.ID)
		case wasFinal:
			live, revived = append(live, c.After), append(revived, c.After.ID)
		default:
			live = append(live, c.After)
		}
	}
	queueIDs := func(sql string, ids []task.ID) {
		if len(ids) > 0 {
			batch.Queue(sql, ids)
		}
	}
	queueIDs(reviveSQL, revived)
	queueIDs(deleteDoneSQL, leavingDone)
	queueIDs(deleteLiveSQL, leavingLive)
	insertDone.Queue(batch, done)
	updateLive.Queue(batch, live)
	st.hooks.Changed(batch, changes)
	return st.queueEvents(batch, changes)
}

type (
	// decision returns the changed task, or an error if the change is refused.
	decision func(t task.Task, now time.Time) (task.Task, error)
	// extraStatements adds statements to the transaction of a change.
	extraStatements func(batch *pgx.Batch, before, after task.Task)
)

// decide changes one task for an operator or a submitter: it locks the task, calls the given decision, and
// commits the change together with the statements of extra. If the decision changes nothing, extra is not called.
func (st *Store) decide(ctx context.Context, id task.ID, decide decision, extra extraStatements) (task.Task, error) {
	var after task.Task
	err := st.db.WithPartitions(ctx, func() error {
		conn, err := st.db.Hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		locked, err := Lock(ctx, conn.Conn(), []task.ID{id}, LockTimeout)
		if err == nil {
			after, err = st.decideOne(ctx, conn.Conn(), locked, id, decide, extra)
		}
		return store.RollbackOn(conn.Conn(), err)
	})
	return after, err
}

func (st *Store) decideOne(ctx context.Context, conn *pgx.Conn, locked Locked, id task.ID, decide decision, extra extraStatements) (task.Task, error) {
	before, found, err := locked.Of(id)
	if err == nil && !found {
		err = store.NotFound("task")
	}
	if err != nil {
		return before, err
	}
	after, err := decide(before, locked.Now)
	if err == nil && before.State.Final() && !after.State.Final() {
		err = st.hooks.MayRevive(ctx, conn, before)
	}
	if err != nil {
		return before, err
	}
	var batch pgx.Batch
	var notifier *store.Notifier
	if after != before {
		notifier = st.QueueChanges(&batch, []Change{{before, after}})
		extra(&batch, before, after)
	}
	batch.Queue("commit")
	return after, notifier.Notify(conn.SendBatch(ctx, &batch).Close())
}
