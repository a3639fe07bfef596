package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Statistics are the numbers of tasks by state, all at one instant.
type Statistics struct {
	SMS       Counts
	Subscribe Counts // of sends of subscribe messages
}

// Counts are the numbers of tasks in either the SMS queues or the queues of subscribe messages.
type Counts struct {
	Live          LiveCounts    // of all these queues
	Succeeded     int64         // since the first task
	Failed        int64         // since the first task
	Queues        []QueueCounts // queues with live tasks, by name; at most the 1000 with most tasks
	HasMoreQueues bool          // there are queues with live tasks that Queues does not have; set only for SMS
}

// LiveCounts are the numbers of tasks that are not final. As in the view sms_tasks, scheduled tasks count as pending
// (status 0), and held tasks as processing (status 1).
type LiveCounts struct {
	Scheduled     int64 // also counted in PendingNew or PendingRetry
	PendingNew    int64 // with retry count 0
	PendingRetry  int64 // with a higher retry count
	Processing    int64
	Held          int64          // also counted in Processing
	OldestPending *time.Duration // the longest time that a task has been pending until now; nil = none is pending
}

// QueueCounts are the LiveCounts of one queue.
type QueueCounts struct {
	Queue string
	LiveCounts
}

// tasks returns the number of all live tasks.
func (l LiveCounts) tasks() int64 { return l.PendingNew + l.PendingRetry + l.Processing }

// firstOpenDaySQL returns the UTC day after the last closed one, or the zero time if no day is closed. counted_to is null for a closed
// day.
const firstOpenDaySQL = `select coalesce(max(day) + 1, date '0001-01-01') from task_totals where counted_to is null`

// countLive selects the numbers of LiveCounts from task_live.
const countLive = `
        count(*) filter (where state = 0) as scheduled,
        count(*) filter (where state in (0, 1) and retry_count = 0) as pending_new,
        count(*) filter (where state in (0, 1) and retry_count > 0) as pending_retry,
        count(*) filter (where state in (2, 3)) as processing,
        count(*) filter (where state = 3) as held,
        extract(epoch from now() - min(updated_at) filter (where state = 1))::float8 as oldest_pending
    from task_live`

const ofSubscribe = `queue in ('` + task.WeChatQueue + `', '` + task.RecordedQueue + `')`

// liveRows returns one row for SMS and one for subscribe messages, each with the counts of all its queues and null as
// the queue. It also returns one row for each of 1000 queues: those of subscribe messages, and the SMS queues with most
// live tasks. Callers choose the names of queues, so there may be very many queues.
const liveRows = `
    select ` + ofSubscribe + ` as subscribe, null as queue, ` + countLive + ` group by 1
    union all (
        select ` + ofSubscribe + `, queue, ` + countLive + ` group by queue
        order by 1 desc, count(*) desc, queue limit 1000
    )`

// ResultCounts selects the four counts of results, named as in task_totals.
const ResultCounts = `
        count(*) filter (where status = 2 and not subscribe) as succeeded, count(*) filter (where status = 3 and not subscribe) as failed,
        count(*) filter (where status = 2 and subscribe) as subscribe_succeeded, count(*) filter (where status = 3 and subscribe) as subscribe_failed`

// statisticsSQL counts live rows, and results since the first open day ($1). To the results it adds the stored
// totals of earlier days. The day is a parameter, since the planner uses the index on reported_at only for
// a known value. An attacker who controls a function can write any total; least and greatest prevent an overflow of the sum.
const statisticsSQL = `
select closed.succeeded + open.succeeded, closed.failed + open.failed,
    closed.subscribe_succeeded + open.subscribe_succeeded, closed.subscribe_failed + open.subscribe_failed, live.*
from (
    select least(greatest(coalesce(sum(succeeded), 0), -1000000000000000000), 1000000000000000000)::bigint as succeeded,
        least(greatest(coalesce(sum(failed), 0), -1000000000000000000), 1000000000000000000)::bigint as failed,
        least(greatest(coalesce(sum(subscribe_succeeded), 0), -1000000000000000000), 1000000000000000000)::bigint as subscribe_succeeded,
        least(greatest(coalesce(sum(subscribe_failed), 0), -1000000000000000000), 1000000000000000000)::bigint as subscribe_failed
    from task_totals where day < $1::date
) closed
cross join (
    select ` + ResultCounts + `
    from task_done where reported_at >= $1::date::timestamp at time zone 'UTC'
) open
left join (` + liveRows + `) live on true
order by live.queue`

// Statistics counts all tasks in one snapshot, so that a task is counted once even if it is archived
// or its day is closed at the same time. The cost grows with the number of live tasks and of results
// since the last closed day (see maintenance.Store.CloseDays).
func (st *Store) Statistics(ctx context.Context) (s Statistics, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, snapshot, func(tx pgx.Tx) error {
		s, err = queryStatistics(ctx, tx)
		return err
	})
	return s, store.Wrap("statistics", err)
}

func queryStatistics(ctx context.Context, tx pgx.Tx) (Statistics, error) {
	var s Statistics
	var day time.Time
	if err := tx.QueryRow(ctx, firstOpenDaySQL).Scan(&day); err != nil {
		return s, err
	}
	var subscribe *bool // null if there is no live task; then there is one row
	var queue *string   // null in the row of all queues together
	var scheduled, pendingNew, pendingRetry, processing, held *int64
	var oldest *float64
	targets := []any{&s.SMS.Succeeded, &s.SMS.Failed, &s.Subscribe.Succeeded, &s.Subscribe.Failed, &subscribe, &queue, &scheduled, &pendingNew, &pendingRetry, &processing, &held, &oldest}
	err := store.QueryEach(ctx, tx, statisticsSQL, []any{day}, targets, func() {
		if subscribe == nil {
			return
		}
		counts := &s.SMS
		if *subscribe {
			counts = &s.Subscribe
		}
		live := LiveCounts{
			Scheduled: *scheduled, PendingNew: *pendingNew, PendingRetry: *pendingRetry, Processing: *processing, Held: *held, OldestPending: age(oldest),
		}
		if queue == nil {
			counts.Live = live
		} else {
			counts.Queues = append(counts.Queues, QueueCounts{*queue, live})
		}
	})
	unlisted := s.SMS.Live.tasks()
	for _, q := range s.SMS.Queues {
		unlisted -= q.tasks()
	}
	s.SMS.HasMoreQueues = unlisted > 0
	return s, err
}

// age converts seconds to a duration.
func age(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	return new(time.Duration(*seconds * float64(time.Second)))
}

// CountingSQL prepares a transaction that counts results. It allows bitmap scans, without which Postgres cannot use the
// BRIN index on reported_at, and sets the statement timeout to $1.
const CountingSQL = `select set_config('enable_bitmapscan', 'on', true), set_config('statement_timeout', $1, true)`

// LongestCount is the longest statement timeout to use with CountingSQL.
const LongestCount = 15 * time.Second
