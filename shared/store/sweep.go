package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// lockDueSQL takes what fell due, whatever it is. Rows that another sweep, a
// claim or a report holds are left to them.
const lockDueSQL = `select ` + liveColumns + `, now() from task_live l where l.due_at <= now() order by l.due_at limit $1 for update skip locked`

// dueSQL tells when a pause and a task fall due first, and what time it is. It
// spares the idle poll a transaction.
const (
	dueSQL     = `select ` + dueColumns
	dueColumns = `(select min(until) from queue_pauses), (select due_at from task_live where due_at is not null order by due_at limit 1), now()`
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
	Pending  Touched
	Verdicts map[task.Verdict]int
	Next     time.Time // when the next task falls due or pause ends, or what is due already and in other hands; zero = none does
}

// Sweep settles up to limit tasks that fell due, earliest first: it promotes
// scheduled tasks, recovers zombies and expires what is past its time, in one
// transaction; and it lets go on the queues whose pause is over. Any number of
// sweeps may run at once. Nothing more is due when fewer than limit rows were
// settled. Pending is given with an error too: the answer to the commit may be all
// that was lost, and the next sweep would find nothing to tell of.
func (db *DB) Sweep(ctx context.Context, limit int) (swept Swept, err error) {
	pending := Touched{}
	err = db.withPartitions(ctx, func() error {
		swept, err = db.sweepOnce(ctx, limit, pending)
		return err
	})
	swept.Pending = pending
	return swept, failed("sweep", err)
}

// sweepOnce adds to pending what is committed, or may be.
func (db *DB) sweepOnce(ctx context.Context, limit int, pending Touched) (Swept, error) {
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
	batch.Queue(lockDueSQL, limit).Query(func(rows pgx.Rows) error {
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
	swept.Next = due.at()
	return swept, rollbackOn(conn.Conn(), err)
}
