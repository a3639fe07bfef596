package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Statistics counts tasks by what they are doing, all at one instant.
type Statistics struct {
	Live      LiveCounts    // over all queues
	Succeeded int64         // ever
	Failed    int64         // ever
	Queues    []QueueCounts // of the queues that have live tasks, by name
}

// LiveCounts counts the tasks that are not final. Pending and processing are
// the seed's status 0 and 1 (seed 001 section 8.5); scheduled and held tasks
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

const firstOpenDaySQL = `select coalesce(max(day) + 1, date '1970-01-01') from task_totals`

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

// statisticsSQL counts live rows, results since the first open day, and the
// stored totals before it: never the history. The day comes as a parameter,
// since the planner takes the index on reported_at only for a value it sees.
const statisticsSQL = `
select closed.succeeded + open.succeeded, closed.failed + open.failed, live.*
from (
    select coalesce(sum(succeeded), 0)::bigint as succeeded, coalesce(sum(failed), 0)::bigint as failed
    from task_totals where day < $1::date
) closed
cross join (
    select count(*) filter (where status = 2) as succeeded, count(*) filter (where status = 3) as failed
    from task_done where reported_at >= $1::date::timestamp at time zone 'UTC'
) open
left join (` + liveByQueue + `) live on true
order by live.queue`

// Statistics counts all tasks, in one snapshot: a day that is closed meanwhile,
// and what is archived then, must not be counted twice or not at all. What it
// costs grows with the tasks outstanding and with the results since the last
// closed day (see CloseDays).
func (db *DB) Statistics(ctx context.Context) (s Statistics, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.read, snapshot, func(tx pgx.Tx) error {
		s, err = countTasks(ctx, tx)
		return err
	})
	return s, failed("statistics", err)
}

func countTasks(ctx context.Context, tx pgx.Tx) (Statistics, error) {
	var s Statistics
	var day time.Time
	if err := tx.QueryRow(ctx, firstOpenDaySQL).Scan(&day); err != nil {
		return s, err
	}
	rows, err := tx.Query(ctx, statisticsSQL, day)
	if err != nil {
		return s, err
	}
	var queue *string // null in the one row that there is without live tasks
	var scheduled, fresh, retry, processing, held *int64
	var oldest *float64
	into := []any{&s.Succeeded, &s.Failed, &queue, &scheduled, &fresh, &retry, &processing, &held, &oldest}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if queue == nil {
			return nil
		}
		q := QueueCounts{*queue, LiveCounts{
			Scheduled: *scheduled, PendingNew: *fresh, PendingRetry: *retry, Processing: *processing, Held: *held, OldestPending: age(oldest),
		}}
		s.Queues = append(s.Queues, q)
		s.Live.add(q.LiveCounts)
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

// closeAfter is how long after its end, midnight UTC, a day is closed: longer
// than any transaction that reports into it may take.
const closeAfter = time.Hour

// unclosedSQL finds the last closed day and the oldest result, whose time is
// at or after that of its id.
const unclosedSQL = `
select (select max(day) from task_totals), (select id from task_done order by id limit 1), now()`

// closingSQL prepares the transaction that closes a day. The index on
// reported_at can only be scanned as a bitmap, and a day may be long.
const closingSQL = `select set_config('enable_bitmapscan', 'on', true), set_config('statement_timeout', '60s', true)`

// lockClosingSQL keeps out whoever withdraws a result (lockTotalsSQL). It comes
// before the count, whose snapshot then has all that was withdrawn before.
const lockClosingSQL = `select pg_advisory_xact_lock(` + totalsLock + `)`

const closeDaySQL = `
insert into task_totals (day, succeeded, failed)
select $1::date, count(*) filter (where status = 2), count(*) filter (where status = 3)
from task_done
where reported_at >= $1::date::timestamp at time zone 'UTC' and reported_at < ($1::date + 1)::timestamp at time zone 'UTC'
on conflict (day) do nothing`

// CloseDays stores the totals of every UTC day that is over for closeAfter, so
// that Statistics need not count them again. Any number may run at once.
func (db *DB) CloseDays(ctx context.Context) error {
	day, now, err := db.firstUnclosed(ctx)
	for ; err == nil && !day.IsZero() && !day.AddDate(0, 0, 1).Add(closeAfter).After(now); day = day.AddDate(0, 0, 1) {
		err = db.closeDay(ctx, day)
	}
	return failed("close days", err)
}

// firstUnclosed gives the day after the last closed one, else one that has no
// result before it, and the database's now. The day is zero when nothing was
// ever reported.
func (db *DB) firstUnclosed(ctx context.Context) (day, now time.Time, err error) {
	var last *time.Time
	var oldest *task.ID
	if err = db.hot.QueryRow(ctx, unclosedSQL).Scan(&last, &oldest, &now); err != nil {
		return day, now, err
	}
	switch {
	case last != nil:
		day = last.AddDate(0, 0, 1)
	case oldest != nil:
		// A day more, as the clock that made the id is not the database's.
		day = oldest.Time().Truncate(24*time.Hour).AddDate(0, 0, -1)
	}
	return day, now, nil
}

func (db *DB) closeDay(ctx context.Context, day time.Time) error {
	return pgx.BeginFunc(ctx, db.hot, func(tx pgx.Tx) error {
		for _, sql := range []string{closingSQL, lockClosingSQL} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, closeDaySQL, unprepared, day)
		return err
	})
}
