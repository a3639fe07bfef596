package tasks

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// beginLockSQL returns now(), and limits how long the transaction waits for each lock.
const beginLockSQL = `select now(), set_config('lock_timeout', $1, true)`

// lockLiveSQL and lockDoneSQL lock in id order, to avoid deadlocks. lockDoneSQL runs after lockLiveSQL. So it also
// finds tasks that were finished while lockLiveSQL waited.
const (
	lockLiveSQL = liveTasks + `where l.id = any($1::uuid[]) order by l.id for update`
	lockDoneSQL = doneTasks + `where d.id = any($1::uuid[]) order by d.id for update of d`

	readLiveSQL = liveTasks + `where l.id = any($1::uuid[])`
	readDoneSQL = doneTasks + `where d.id = any($1::uuid[])`

	liveTasks = `select ` + liveColumns + `, now() from task_live l
`
	doneTasks = `select ` + doneColumns + `, now() from task_done d` + bodies
	bodies    = ` cross join lateral (select * from tasks where tasks.id = d.id offset 0) t
`
)

// A report locks a task only if it can change the task (task.Task.Report). Claims skip locked tasks: if every report
// locked its task, anybody who knows the id of a task could keep others from claiming it. A task that none of its
// reports can change is only read, after lockReportedLiveSQL has run.
const (
	lockReportedLiveSQL = reportedLive + changesLive + ` for update) l`
	lockReportedDoneSQL = reportedDone + changesDone + ` for update) d` + bodies
	readReportedLiveSQL = reportedLive + `(` + changesLive + `) is not true offset 0) l`
	readReportedDoneSQL = reportedDone + `(` + changesDone + `) is not true offset 0) d` + bodies

	// The lateral join looks up the tasks in the order of the reports, by index. So they are locked in this order, and no task is compared
	// with each report. "for update" and "offset 0" keep Postgres from planning another join.
	reportedLive = `select ` + liveColumns + `, now() from ` + reports + ` cross join lateral (select * from task_live l where l.id = reported_id and `
	reportedDone = `select ` + doneColumns + `, now() from ` + reports + ` cross join lateral (select * from task_done d where d.id = reported_id and `
	reports      = `unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::boolean[]) as r (reported_id, reporter, app, claim, succeeded)`

	// State 2 is processing. A late success may change a live task in any state, and a task that failed (status 3) for one of the reasons
	// of task.Task.acceptsLateSuccess: timeout, unknown, expired.
	changesLive = `coalesce(l.claimed_by, reporter) = reporter and app_id = app and claim in (0, claim_id) and (l.state = 2 or succeeded)`
	changesDone = `coalesce(d.claimed_by, reporter) = reporter and app_id = app and claim in (0, claim_id) and succeeded and d.status = 3 and d.reason in (3, 4, 5)`
)

// tasksExistSQL finds the tasks that lockLiveSQL or lockDoneSQL can find: live tasks, and done tasks with a body. It
// reads both tables in one snapshot, so it also finds a task that another transaction is moving from one table to the
// other.
const tasksExistSQL = `
select id from task_live where id = any($1::uuid[])
union all
select d.id from task_done d where d.id = any($1::uuid[]) and exists (select from tasks where tasks.id = d.id offset 0)`

// Locked has the tasks that a transaction has locked (Lock), or has read without locks (Read).
type Locked struct {
	tasks map[task.ID]task.Task
	read  map[task.ID]task.Task // tasks that lockReported only read, because none of their reports can change them
	exist map[task.ID]bool      // tasks that tasksExistSQL found in the last round; some may not be locked
	Now   time.Time             // now() of the transaction
}

// Of returns one of the tasks. found is false if the task is archived, does not exist, or has lost its row of task_live
// or task_done (or, if it is final, of tasks). The error is task.CodeServerBusy if the task exists but no round could
// lock it, because it moved between the tables each time.
func (l Locked) Of(id task.ID) (t task.Task, found bool, err error) {
	t, found = l.tasks[id]
	if !found && l.exist[id] {
		err = store.Busy()
	}
	return t, found, err
}

// reported is Of for a report: it also returns tasks that lockReported only read. Reports may change only locked tasks.
func (l Locked) reported(id task.ID) (t task.Task, isLocked, found bool, err error) {
	if _, isLocked = l.tasks[id]; !isLocked {
		if t, found = l.read[id]; found {
			return t, false, true, nil
		}
	}
	t, found, err = l.Of(id)
	return t, isLocked, found, err
}

// missing returns the ids whose tasks are neither locked nor read.
func (l Locked) missing(ids []task.ID) []task.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool {
		_, isLocked := l.tasks[id]
		_, isRead := l.read[id]
		return isLocked || isRead
	})
}

// How long a transaction waits for a locked row. A report that is run alone has already waited once, in a flush with
// others.
const (
	LockTimeout      = "250ms"
	lockTimeoutAlone = "20ms"
)

// lockRounds limits how often Lock searches both tables. Each round runs lockDoneSQL, then lockLiveSQL. It misses a
// task that is live during the first and done during the second.
const lockRounds = 5

// Lock begins a transaction and locks the tasks. If all tasks are live, Lock needs one round trip. Otherwise it
// searches both tables for the missing tasks. If the search missed a task that exists, Lock searches again, up to
// lockRounds times.
func Lock(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (Locked, error) {
	return lockStatements{live: lockLiveSQL, done: lockDoneSQL, args: byIDs}.run(ctx, conn, ids, timeout)
}

// Read is Lock without locks, for a transaction that does not change the tasks. It makes the commit wait for the
// synchronous standby, as a lock does.
func Read(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (Locked, error) {
	read, err := lockStatements{live: readLiveSQL, done: readDoneSQL, args: byIDs}.run(ctx, conn, ids, timeout)
	if err == nil {
		_, err = conn.Exec(ctx, store.WaitForStandbySQL)
	}
	return read, err
}

func byIDs(ids []task.ID) []any { return []any{ids} }

// lockReported is Lock for reports. It only reads the tasks that none of their reports can change.
func lockReported(ctx context.Context, conn *pgx.Conn, reports []*Report, timeout string) (Locked, error) {
	idOf := func(r *Report) task.ID { return r.TaskID }
	return lockStatements{
		live: lockReportedLiveSQL, done: lockReportedDoneSQL, read: []string{readReportedLiveSQL, readReportedDoneSQL},
		args: func(ids []task.ID) []any {
			wanted := map[task.ID]bool{}
			for _, id := range ids {
				wanted[id] = true
			}
			rs := slices.DeleteFunc(slices.Clone(reports), func(r *Report) bool { return !wanted[r.TaskID] })
			slices.SortFunc(rs, func(a, b *Report) int { return a.TaskID.Compare(b.TaskID) }) // the order in which they are locked
			return []any{
				store.Column(rs, idOf), store.Column(rs, func(r *Report) int64 { return r.CallerID }), store.Column(rs, func(r *Report) string { return r.AppID }),
				store.Column(rs, func(r *Report) int64 { return r.ClaimID }), store.Column(rs, func(r *Report) bool { return r.Outcome == task.SentOK }),
			}
		},
	}.run(ctx, conn, store.Column(reports, idOf), timeout)
}

// lockStatements are the statements of Lock, Read or lockReported. args returns their parameters.
type lockStatements struct {
	live, done string
	read       []string // for the tasks that are only read, which live and done leave out
	args       func(ids []task.ID) []any
}

func (s lockStatements) run(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (Locked, error) {
	locked := Locked{tasks: make(map[task.ID]task.Task, len(ids)), read: map[task.ID]task.Task{}}
	queue := func(batch *pgx.Batch, into map[task.ID]task.Task, args []any, statements ...string) {
		for _, sql := range statements {
			batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
				tasks, err := pgx.CollectRows(rows, store.RowByName[taskRow]())
				for _, t := range tasks {
					into[t.ID] = t.Task
				}
				return err
			})
		}
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(beginLockSQL, timeout).QueryRow(func(row pgx.Row) error { return row.Scan(&locked.Now, nil) })
	queue(&batch, locked.tasks, s.args(ids), s.live)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return locked, err
	}
	missing := locked.missing(ids)
	for round := 0; round < lockRounds && len(missing) > 0; round++ {
		locked.exist = map[task.ID]bool{}
		var batch pgx.Batch
		args := s.args(missing)
		queue(&batch, locked.tasks, args, s.done, s.live)
		queue(&batch, locked.read, args, s.read...)
		batch.Queue(tasksExistSQL, missing).Query(store.CollectSet(locked.exist))
		if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
			return locked, err
		}
		missing = locked.missing(slices.Collect(maps.Keys(locked.exist)))
	}
	return locked, nil
}
