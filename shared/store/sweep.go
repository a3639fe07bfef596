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

// anyDueSQL spares the idle poll a transaction.
const anyDueSQL = `select exists (select from queue_pauses where until <= now()), exists (select from task_live where due_at <= now())`

// Touched counts, by queue, the tasks that a sender may take from now on.
type Touched map[string]int

const nextDueSQL = `
select least((select due_at from task_live where due_at is not null order by due_at limit 1), (select min(until) from queue_pauses))`

// NextDue is when a task falls due or a pause ends next; zero = none does.
func (db *DB) NextDue(ctx context.Context) (time.Time, error) {
	at, err := db.instant(ctx, nextDueSQL)
	return at, failed("next due", err)
}

// Swept is what one batch of a sweep did.
type Swept struct {
	Rows     int
	Pending  Touched
	Verdicts map[task.Verdict]int
}

// Sweep settles up to limit tasks that fell due, earliest first: it promotes
// scheduled tasks, recovers zombies and expires what is past its time, in one
// transaction; and it lets go on the queues whose pause is over. Any number of sweeps may run at once. Nothing more is due when
// fewer than limit rows were settled.
func (db *DB) Sweep(ctx context.Context, limit int) (swept Swept, err error) {
	err = db.withPartitions(ctx, func() error {
		swept, err = db.sweepOnce(ctx, limit)
		return err
	})
	return swept, failed("sweep", err)
}

func (db *DB) sweepOnce(ctx context.Context, limit int) (Swept, error) {
	swept := Swept{Pending: Touched{}, Verdicts: map[task.Verdict]int{}}
	conn, err := db.hot.Acquire(ctx)
	if err != nil {
		return swept, err
	}
	defer conn.Release()
	var resumed, due bool
	err = conn.QueryRow(ctx, anyDueSQL).Scan(&resumed, &due)
	if err == nil && resumed {
		err = endPauses(ctx, conn.Conn(), swept.Pending)
	}
	if err != nil || !due {
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
			if after.State == task.Pending {
				swept.Pending[t.Queue]++
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
	batch.Queue("commit")
	return swept, rollbackOn(conn.Conn(), told.after(conn.Conn().SendBatch(ctx, &batch).Close()))
}
