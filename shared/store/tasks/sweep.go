package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// timed selects the tasks that become due and have no lease: scheduled tasks, and pending tasks with an expiry. Tasks
// in processing (state 2) have a lease, and held tasks have no due_at.
const timed = `state <> 2 and due_at is not null`

// lockDueSQL locks due tasks: up to $1 tasks of queue $2, up to $1 tasks of other queues in equal parts, and the $1 / 2
// tasks of any queue whose leases expired first. So a queue with many due tasks does not delay the first due tasks of
// other queues. An empty $2 means no queue.
//
// The other queues are those with due tasks among $1 queues, in order of hash from a random start, and the queue whose
// task was due first. So every queue with due tasks is found after some batches, even if many queues have no due task.
// Conditions on ranges select the tasks of one queue: with equalities, the planner could scan
// task_live_due, the index of all queues. Locked rows are skipped.
const lockDueSQL = `
with recursive queues (hash, queue, due_at) as (
    select ` + store.RandomHash + `, ''::text collate "C", null::timestamptz
    union
    select n.hash, n.queue, n.due_at from queues cross join lateral (
        (select hashtextextended(l.queue, 0) as hash, l.queue::text, l.due_at from task_live l
        where ` + timed + ` and (hashtextextended(l.queue, 0), l.queue) > (queues.hash, queues.queue)
        order by hashtextextended(l.queue, 0), l.queue, l.due_at limit 1)
        union all
        (select hashtextextended(l.queue, 0), l.queue::text, l.due_at from task_live l where ` + timed + `
        order by hashtextextended(l.queue, 0), l.queue, l.due_at limit 1)
        limit 1
    ) n
), due as materialized (
    select hashtextextended(queue, 0) as hash, queue, case when queue = $2 then $1 else greatest($1 / count(*) over (), 1) end as room
    from (
        select queue from (select queue, due_at from queues where queue <> '' limit $1) near where due_at <= now()
        union (select queue::text from task_live where ` + timed + ` and due_at <= now() order by due_at limit 1)
        union select $2::text collate "C" where $2 <> ''
    ) q
), l as (
    select * from (select * from task_live where state = 2 and due_at <= now() order by due_at limit greatest($1 / 2, 1) for update skip locked) expired
    union all
    select one.* from due cross join lateral (
        select * from task_live l
        where ` + timed + ` and (hashtextextended(l.queue, 0), l.queue) >= (due.hash, due.queue)
            and (hashtextextended(l.queue, 0), l.queue, l.due_at) <= (due.hash, due.queue, now())
        order by hashtextextended(l.queue, 0), l.queue, l.due_at
        limit due.room
        for update skip locked
    ) one
)
select ` + liveColumns + `, now() from l`

// dueSQL returns when the first pause ends, when the first task is due, and now(). If both times are in the future, a
// sweep ends without a transaction.
const (
	dueSQL     = `select ` + dueColumns
	dueColumns = `(select min(until) from queue_pauses), least(
    (select due_at from task_live where state = 2 order by due_at limit 1),
    (select due_at from task_live where ` + timed + ` order by due_at limit 1)
), now()`
)

// nextDue is the result of dueSQL. A nil time means never.
type nextDue struct {
	pause, task *time.Time
	now         time.Time
}

func (d *nextDue) scan(row pgx.Row) error { return row.Scan(&d.pause, &d.task, &d.now) }

func (d *nextDue) isPast(at *time.Time) bool { return at != nil && !at.After(d.now) }

// at returns the earlier of pause and task; zero = never.
func (d *nextDue) at() time.Time {
	pauseEnd, dueAt := store.OrZero(d.pause), store.OrZero(d.task)
	if pauseEnd.IsZero() || !dueAt.IsZero() && dueAt.Before(pauseEnd) {
		return dueAt
	}
	return pauseEnd
}

// Swept is the result of one batch of a sweep.
type Swept struct {
	Rows     int  // tasks that were processed
	More     bool // more tasks may be due
	Pending  PendingByQueue
	Verdicts map[task.Verdict]int // tasks by verdict
	Next     time.Time            // when the next task is due or the next pause ends; zero = never. In the past if more tasks are due, or if the due task or the pause is locked
}

// Sweep processes due tasks in one transaction: it promotes scheduled tasks, ends claims whose lease expired, and fails
// expired tasks. Before that, it removes ended pauses of queues. It processes about limit tasks without a lease, an
// equal part of each queue, and limit / 2 expired leases. Any number of sweeps may run at once. Pending is returned
// even with an error: the commit may have succeeded, and the next sweep would not find these tasks again.
func (st *Store) Sweep(ctx context.Context, limit int) (Swept, error) {
	return st.sweep(ctx, limit, "")
}

// sweep is Sweep, and also processes up to limit tasks of the given queue; "" = no queue.
func (st *Store) sweep(ctx context.Context, limit int, queue string) (swept Swept, err error) {
	pending := PendingByQueue{}
	err = st.db.WithPartitions(ctx, func() error {
		swept, err = st.sweepOnce(ctx, limit, queue, pending)
		return err
	})
	swept.Pending = pending
	return swept, store.Wrap("sweep", err)
}

// sweepOnce makes one sweep, and adds the numbers of tasks that became pending to pending. It adds them too if the
// commit returned an error but may have succeeded.
func (st *Store) sweepOnce(ctx context.Context, limit int, queue string, pending PendingByQueue) (Swept, error) {
	swept := Swept{Verdicts: map[task.Verdict]int{}}
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return swept, err
	}
	defer conn.Release()
	var due nextDue
	err = due.scan(conn.QueryRow(ctx, dueSQL))
	if err == nil && due.isPast(due.pause) {
		if err = endPauses(ctx, conn.Conn(), pending); err == nil {
			err = due.scan(conn.QueryRow(ctx, dueSQL))
		}
	}
	swept.Next = due.at()
	if err != nil || !due.isPast(due.task) {
		return swept, err
	}

	var changes []Change
	var logs []VerdictLog
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(lockDueSQL, limit, queue).Query(func(rows pgx.Rows) error {
		tasks, err := pgx.CollectRows(rows, store.RowByName[taskRow]())
		for _, t := range tasks {
			after, verdict := t.SettleDue(st.backoff, t.Now)
			changes = append(changes, Change{t.Task, after})
			if verdict != task.Promoted {
				logs = append(logs, VerdictLog{ID: t.ID, claimID: t.ClaimID, appID: t.AppID, Verdict: verdict, Message: after.Result})
			}
			swept.Verdicts[verdict]++
		}
		return err
	})
	if err := conn.Conn().SendBatch(ctx, &batch).Close(); err != nil {
		return swept, store.RollbackOn(conn.Conn(), err)
	}
	if swept.Rows = len(changes); swept.Rows == 0 {
		store.Rollback(conn.Conn())
		return swept, nil
	}
	batch = pgx.Batch{}
	notifier := st.QueueChanges(&batch, changes)
	QueueVerdicts(&batch, logs)
	batch.Queue(dueSQL).QueryRow(due.scan)
	batch.Queue("commit")
	err = notifier.Notify(conn.Conn().SendBatch(ctx, &batch).Close())
	if err == nil || store.MayHaveCommitted(err) {
		for _, c := range changes {
			if c.After.State == task.Pending {
				pending[c.After.Queue]++
			}
		}
	}
	swept.Next, swept.More = due.at(), due.isPast(due.task)
	return swept, store.RollbackOn(conn.Conn(), err)
}
