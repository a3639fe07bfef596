package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Statistics counts tasks by what they are doing, all at one instant: SMS, and
// apart from them the sends of subscribe messages.
type Statistics struct {
	TaskCounts
	Subscribe TaskCounts
}

// TaskCounts are the tasks of some queues.
type TaskCounts struct {
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

// firstOpenDaySQL gives the zero time while no day is closed.
const firstOpenDaySQL = `select coalesce(max(day) + 1, date '0001-01-01') from task_totals where counted_to is null`

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

// resultCounts are the four figures of results, named as in task_totals.
const resultCounts = `
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
    select ` + resultCounts + `
    from task_done where reported_at >= $1::date::timestamp at time zone 'UTC'
) open
left join (` + liveByQueue + `) live on true
order by live.queue`

// Statistics counts all tasks in one snapshot: a day that is closed meanwhile,
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
	into := []any{&s.Succeeded, &s.Failed, &s.Subscribe.Succeeded, &s.Subscribe.Failed, &queue, &scheduled, &fresh, &retry, &processing, &held, &oldest}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if queue == nil {
			return nil
		}
		q := QueueCounts{*queue, LiveCounts{
			Scheduled: *scheduled, PendingNew: *fresh, PendingRetry: *retry, Processing: *processing, Held: *held, OldestPending: age(oldest),
		}}
		of := &s.TaskCounts
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

// closeAfter is how long after its end, midnight UTC, a day is closed: longer
// than any transaction that reports into it may take.
const closeAfter = time.Hour

// unclosedSQL finds the last closed day, the day of which a part is counted, and
// the oldest result, whose time is at or after that of its id.
const unclosedSQL = `
select (select max(day) from task_totals where counted_to is null), p.day, p.counted_to, (select id from task_done order by id limit 1), now()
from (select) one left join (select day, counted_to from task_totals where counted_to is not null order by day limit 1) p on true`

// countingSQL prepares the transaction that counts a part of a day. The index on
// reported_at can only be scanned as a bitmap.
const countingSQL = `select set_config('enable_bitmapscan', 'on', true), set_config('statement_timeout', $1, true)`

// lockCountingSQL keeps out whoever withdraws a result (lockTotalsSQL). It comes
// before the count, whose snapshot then has all that was withdrawn before.
const lockCountingSQL = `select pg_advisory_xact_lock(` + totalsLock + `)`

// countSQL adds the results of the day $1 from $2 on and before $3 to its totals,
// unless another instance has done so.
const countSQL = `
insert into task_totals as t (day, succeeded, failed, subscribe_succeeded, subscribe_failed, counted_to)
select $1::date,` + resultCounts + `,
    nullif($3::timestamptz, ($1::date + 1)::timestamp at time zone 'UTC')
from task_done
where reported_at >= $2::timestamptz and reported_at < $3::timestamptz
on conflict (day) do update
set succeeded = t.succeeded + excluded.succeeded, failed = t.failed + excluded.failed,
    subscribe_succeeded = t.subscribe_succeeded + excluded.subscribe_succeeded,
    subscribe_failed = t.subscribe_failed + excluded.subscribe_failed, counted_to = excluded.counted_to
where t.counted_to = $2::timestamptz`

const (
	countTime = 2 * time.Second // how long the count of a part may take; after that a smaller part is tried
	smaller   = 8               // times: a whole day becomes the shortest part in four tries

	// The shortest part may take longer, but all tries together less than the 30 s
	// that an event has.
	shortestPart     = time.Minute
	shortestPartTime = 15 * time.Second
)

// CloseDays stores the totals of every UTC day that is over for closeAfter, so
// that Statistics need not count them again. It counts a day in parts, each in a
// transaction of its own: after an error the next call goes on with the part that
// failed. Any number may run at once.
func (db *DB) CloseDays(ctx context.Context) error {
	_, err := db.closeDays(ctx, time.Time{})
	return failed("close days", err)
}

// closeDays is CloseDays that returns after the first part that ends later than
// until, unless that is zero; more says that there are others.
func (db *DB) closeDays(ctx context.Context, until time.Time) (more bool, err error) {
	for {
		part, now, err := db.firstUncounted(ctx)
		if err != nil || part.day.IsZero() || part.end().Add(closeAfter).After(now) {
			return false, err
		}
		if !until.IsZero() && time.Now().After(until) {
			return true, nil
		}
		if err := db.countPart(ctx, part); err != nil {
			return false, err
		}
	}
}

// dayPart is what is not yet counted of a UTC day.
type dayPart struct{ day, from time.Time }

func (p dayPart) end() time.Time { return p.day.AddDate(0, 0, 1) }

// firstUncounted gives what remains of the first day that is not closed, and the
// database's now: the day after the last closed one, else one that has no result
// before it. The day is zero when nothing was ever reported.
func (db *DB) firstUncounted(ctx context.Context) (part dayPart, now time.Time, err error) {
	var last, begun, countedTo *time.Time
	var oldest *task.ID
	if err = db.retention.QueryRow(ctx, unclosedSQL).Scan(&last, &begun, &countedTo, &oldest, &now); err != nil {
		return part, now, err
	}
	switch {
	case begun != nil:
		return dayPart{*begun, *countedTo}, now, nil
	case last != nil:
		part.day = last.AddDate(0, 0, 1)
	case oldest != nil:
		// A day more, as the clock that made the id is not the database's.
		part.day = oldest.Time().Truncate(24*time.Hour).AddDate(0, 0, -1)
	}
	part.from = part.day
	return part, now, nil
}

// countPart counts all that remains of a day, or as much as was counted before, or
// as much less as can be counted in time.
func (db *DB) countPart(ctx context.Context, part dayPart) error {
	span := part.end().Sub(part.from)
	if done := part.from.Sub(part.day); done > 0 {
		span = min(span, done)
	}
	for {
		limit := db.countTime
		if span <= shortestPart {
			limit = shortestPartTime
		}
		err := db.countDone(ctx, part.day, part.from, part.from.Add(span), limit)
		if pgCode(err) != codeQueryCanceled || ctx.Err() != nil || span <= shortestPart {
			return err
		}
		span = max(span/smaller, shortestPart)
	}
}

func (db *DB) countDone(ctx context.Context, day, from, to time.Time, limit time.Duration) error {
	return pgx.BeginFunc(ctx, db.retention, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, countingSQL, fmt.Sprintf("%dms", limit.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockCountingSQL); err != nil {
			return err
		}
		counted, err := tx.Exec(ctx, countSQL, unprepared, day, from, to)
		if err != nil || counted.RowsAffected() == 0 || to.Before(dayPart{day: day}.end()) {
			return err
		}
		return closeSubscribeDay(ctx, tx, day)
	})
}
