package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// timed keeps the tasks that time changes, apart from those with a lease.
const timed = `state <> 2 and due_at is not null`

// lockDueSQL takes what fell due, whatever it is. Of queue $2 that is up to $1 tasks,
// of each other queue an equal part of $1, and of the leases that ended $1 / 2, each
// the earliest. So however much one queue has due, the first tasks of the others
// are in the same batch. It looks at $1 queues in the order of their hash, starting by
// chance, and at the one whose task is due first: neither very many queues nor what is
// far from due keep one from being found. An empty $2 is no queue. One queue is written
// as a range, as only the index of queues has that order. Rows that another sweep, a
// claim or a report holds are left to them.
const lockDueSQL = `
with recursive turn (hash, queue, due_at) as (
    select ` + anyHash + `, ''::text collate "C", null::timestamptz
    union
    select n.hash, n.queue, n.due_at from turn cross join lateral (
        (select hashtextextended(l.queue, 0) as hash, l.queue::text, l.due_at from task_live l
        where ` + timed + ` and (hashtextextended(l.queue, 0), l.queue) > (turn.hash, turn.queue)
        order by hashtextextended(l.queue, 0), l.queue, l.due_at limit 1)
        union all
        (select hashtextextended(l.queue, 0), l.queue::text, l.due_at from task_live l where ` + timed + `
        order by hashtextextended(l.queue, 0), l.queue, l.due_at limit 1)
        limit 1
    ) n
), due as materialized (
    select hashtextextended(queue, 0) as hash, queue, case when queue = $2 then $1 else greatest($1 / count(*) over (), 1) end as room
    from (
        select queue from (select queue, due_at from turn where queue <> '' limit $1) near where due_at <= now()
        union (select queue::text from task_live where ` + timed + ` and due_at <= now() order by due_at limit 1)
        union select $2::text collate "C" where $2 <> ''
    ) q
), l as (
    select * from (select * from task_live where state = 2 and due_at <= now() order by due_at limit greatest($1 / 2, 1) for update skip locked) lapsed
    union all
    select mine.* from due cross join lateral (
        select * from task_live l
        where ` + timed + ` and (hashtextextended(l.queue, 0), l.queue) >= (due.hash, due.queue)
            and (hashtextextended(l.queue, 0), l.queue, l.due_at) <= (due.hash, due.queue, now())
        order by hashtextextended(l.queue, 0), l.queue, l.due_at
        limit due.room
        for update skip locked
    ) mine
)
select ` + liveColumns + `, now() from l`

// dueSQL tells when a pause and a task fall due first, and what time it is. It
// spares the idle poll a transaction.
const (
	dueSQL     = `select ` + dueColumns
	dueColumns = `(select min(until) from queue_pauses), least(
    (select due_at from task_live where state = 2 order by due_at limit 1),
    (select due_at from task_live where ` + timed + ` order by due_at limit 1)
), now()`
)

// nextDue is what dueSQL tells; nil = never.
type nextDue struct {
	pause, task *time.Time
	now         time.Time
}

func (d *nextDue) scan(row pgx.Row) error { return row.Scan(&d.pause, &d.task, &d.now) }

func (d *nextDue) isPast(at *time.Time) bool { return at != nil && !at.After(d.now) }

// at is the earlier one; zero = never.
func (d *nextDue) at() time.Time {
	pause, task := orZero(d.pause), orZero(d.task)
	if pause.IsZero() || !task.IsZero() && task.Before(pause) {
		return task
	}
	return pause
}

// Touched counts, by queue, the tasks that a sender may take from now on.
type Touched map[string]int

// Swept is what one batch of a sweep did.
type Swept struct {
	Rows     int
	More     bool // something more may be due
	Pending  Touched
	Verdicts map[task.Verdict]int
	Next     time.Time // when the next task falls due or pause ends, or what is due already and in other hands; zero = none does
}

// Sweep settles tasks that fell due: it promotes scheduled tasks, recovers zombies
// and expires what is past its time, in one transaction; and it lets go on the queues
// whose pause is over. Of what is due it takes about limit tasks, an equal part of each
// queue, and half as many ended leases. Any number of sweeps may run at once. Pending is
// given with an error too: the answer to the commit may be all that was lost, and the
// next sweep would not find these tasks again.
func (db *DB) Sweep(ctx context.Context, limit int) (Swept, error) { return db.sweep(ctx, limit, "") }

// sweep is Sweep with up to limit tasks of one queue besides; "" = none.
func (db *DB) sweep(ctx context.Context, limit int, queue string) (swept Swept, err error) {
	pending := Touched{}
	err = db.withPartitions(ctx, func() error {
		swept, err = db.sweepOnce(ctx, limit, queue, pending)
		return err
	})
	swept.Pending = pending
	return swept, failed("sweep", err)
}

// sweepOnce adds to pending what is committed, or may be.
func (db *DB) sweepOnce(ctx context.Context, limit int, queue string, pending Touched) (Swept, error) {
	swept := Swept{Verdicts: map[task.Verdict]int{}}
	conn, err := db.hot.Acquire(ctx)
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

	var changes []change
	var logs []verdictLog
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(lockDueSQL, limit, queue).Query(func(rows pgx.Rows) error {
		return scanTasks(rows, func(t task.Task, now time.Time) {
			after, verdict := t.Due(db.backoff, now)
			changes = append(changes, change{t, after})
			if verdict != task.Promoted {
				logs = append(logs, verdictLog{id: t.ID, claimID: t.ClaimID, appID: t.AppID, verdict: verdict, message: after.Result})
			}
			swept.Verdicts[verdict]++
		})
	})
	if err := conn.Conn().SendBatch(ctx, &batch).Close(); err != nil {
		return swept, rollbackOn(conn.Conn(), err)
	}
	if swept.Rows = len(changes); swept.Rows == 0 {
		rollback(conn.Conn())
		return swept, nil
	}
	batch = pgx.Batch{}
	told := db.queueChanges(&batch, changes)
	queueVerdicts(&batch, logs)
	batch.Queue(dueSQL).QueryRow(due.scan)
	batch.Queue("commit")
	err = told.after(conn.Conn().SendBatch(ctx, &batch).Close())
	if err == nil || mayBeCommitted(err) {
		for _, c := range changes {
			if c.after.State == task.Pending {
				pending[c.after.Queue]++
			}
		}
	}
	swept.Next, swept.More = due.at(), due.isPast(due.task)
	return swept, rollbackOn(conn.Conn(), err)
}
