package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Statistics counts tasks by what they are doing, all at one instant: SMS, and
// apart from them the sends of subscribe messages.
type Statistics struct {
	Counts
	Subscribe Counts
}

// Counts are the tasks of some queues.
type Counts struct {
	Live      LiveCounts    // over all of these queues
	Succeeded int64         // ever
	Failed    int64         // ever
	Queues    []QueueCounts // those that have live tasks, by name
}

// LiveCounts counts the tasks that are not final. Pending and processing are
// status 0 and 1 of the view sms_tasks; scheduled and held tasks
// are among them.
type LiveCounts struct {
	Scheduled     int64 // of the pending
	PendingNew    int64 // never tried
	PendingRetry  int64
	Processing    int64
	Held          int64          // of the processing
	OldestPending *time.Duration // how long the first of the pending has been waiting for a sender; nil = none is pending
}

// QueueCounts are the live tasks of one queue.
type QueueCounts struct {
	Queue string
	LiveCounts
}

func (l *LiveCounts) add(q LiveCounts) {
	l.Scheduled += q.Scheduled
	l.PendingNew += q.PendingNew
	l.PendingRetry += q.PendingRetry
	l.Processing += q.Processing
	l.Held += q.Held
	if q.OldestPending != nil && (l.OldestPending == nil || *q.OldestPending > *l.OldestPending) {
		l.OldestPending = q.OldestPending
	}
}

// FirstOpenDaySQL gives the zero time while no day is closed.
const FirstOpenDaySQL = `select coalesce(max(day) + 1, date '0001-01-01') from task_totals where counted_to is null`

// liveByQueue counts the live rows of each queue.
const liveByQueue = `
    select queue,
        count(*) filter (where state = 0) as scheduled,
        count(*) filter (where state in (0, 1) and retry_count = 0) as pending_new,
        count(*) filter (where state in (0, 1) and retry_count > 0) as pending_retry,
        count(*) filter (where state in (2, 3)) as processing,
        count(*) filter (where state = 3) as held,
        extract(epoch from now() - min(updated_at) filter (where state = 1))::float8 as oldest_pending
    from task_live group by queue`

// ResultCounts are the four figures of results, named as in task_totals.
const ResultCounts = `
        count(*) filter (where status = 2 and not subscribe) as succeeded, count(*) filter (where status = 3 and not subscribe) as failed,
        count(*) filter (where status = 2 and subscribe) as subscribe_succeeded, count(*) filter (where status = 3 and subscribe) as subscribe_failed`

// statisticsSQL counts live rows, results since the first open day, and the
// stored totals before it: never the history. The day comes as a parameter,
// since the planner takes the index on reported_at only for a value it sees.
const statisticsSQL = `
select closed.succeeded + open.succeeded, closed.failed + open.failed,
    closed.subscribe_succeeded + open.subscribe_succeeded, closed.subscribe_failed + open.subscribe_failed, live.*
from (
    select coalesce(sum(succeeded), 0)::bigint as succeeded, coalesce(sum(failed), 0)::bigint as failed,
        coalesce(sum(subscribe_succeeded), 0)::bigint as subscribe_succeeded, coalesce(sum(subscribe_failed), 0)::bigint as subscribe_failed
    from task_totals where day < $1::date
) closed
cross join (
    select ` + ResultCounts + `
    from task_done where reported_at >= $1::date::timestamp at time zone 'UTC'
) open
left join (` + liveByQueue + `) live on true
order by live.queue`

// Statistics counts all tasks in one snapshot: a day that is closed meanwhile,
// and what is archived then, must not be counted twice or not at all. What it
// costs grows with the tasks outstanding and with the results since the last
// closed day (see CloseDays).
func (st *Store) Statistics(ctx context.Context) (s Statistics, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, snapshot, func(tx pgx.Tx) error {
		s, err = countTasks(ctx, tx)
		return err
	})
	return s, store.Wrap("statistics", err)
}

func countTasks(ctx context.Context, tx pgx.Tx) (Statistics, error) {
	var s Statistics
	var day time.Time
	if err := tx.QueryRow(ctx, FirstOpenDaySQL).Scan(&day); err != nil {
		return s, err
	}
	rows, err := tx.Query(ctx, statisticsSQL, day)
	if err != nil {
		return s, err
	}
	var queue *string // null in the one row that there is without live tasks
	var scheduled, fresh, retry, processing, held *int64
	var oldest *float64
	into := []any{&s.Succeeded, &s.Failed, &s.Subscribe.Succeeded, &s.Subscribe.Failed, &queue, &scheduled, &fresh, &retry, &processing, &held, &oldest}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if queue == nil {
			return nil
		}
		q := QueueCounts{*queue, LiveCounts{
			Scheduled: *scheduled, PendingNew: *fresh, PendingRetry: *retry, Processing: *processing, Held: *held, OldestPending: age(oldest),
		}}
		of := &s.Counts
		if task.IsSubscription(q.Queue) {
			of = &s.Subscribe
		}
		of.Queues = append(of.Queues, q)
		of.Live.add(q.LiveCounts)
		return nil
	})
	return s, err
}

// age is a duration that the database gives in seconds; nil = there is none.
func age(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	d := time.Duration(*seconds * float64(time.Second))
	return &d
}

// CountingSQL prepares the transaction that counts a part of a day. The index on
// reported_at can only be scanned as a bitmap.
const CountingSQL = `select set_config('enable_bitmapscan', 'on', true), set_config('statement_timeout', $1, true)`

const LongestCount = 15 * time.Second
