package overview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Lag is the age from which a row is counted. It is longer than a transaction may take. So when Count reads, all rows
// of this age are committed.
const Lag = time.Minute

const (
	countEvery   = 10 * time.Second // Count does nothing if the uncounted time is shorter than both this and lag
	secondPart   = 5 * time.Second  // the longest part of the second try, after a try of all the uncounted time has timed out
	growFactor   = 4                // after a part is counted, the next part may be this many times as long
	shrinkFactor = 8                // by which the length of a part is divided after a timeout

	// The shortest part has the timeout tasks.LongestCount. A shorter part would hardly have fewer rows: all rows that one
	// transaction writes have the same time.
	shortestPart = 10 * time.Millisecond
)

// maxClaims limits how many claims of a finished task are counted, because a sender may claim and release a task any number of
// times.
const maxClaims = 100

// The values of overview_totals.kind.
const (
	kindName        = iota // key is nameOfQueue or nameOfApp
	kindSubmitted          // by queue
	kindClaims             // by queue
	kindFinished           // by queue; key is the reason of a failure, 0 for success
	kindDurations          // by queue; key is the bucket
	kindTimeouts           // by queue
	kindWaits              // by queue; key is the bucket
	kindDeliveries         // key is the state
	kindAppReports         // by app; key is the status. Each applied report is counted, even if the task was retried since
	kindAppTimeouts        // by app
	kindAppClaimed         // by app; only last_at is used, the time of the newest claim of a finished task
)

const (
	nameOfQueue = 0
	nameOfApp   = 1
)

// inFuture is the condition that counted_to is more than an hour in the future: a clock was ahead, or an attacker wrote it.
// Count then sets counted_to to the time up to which it would count, and counts no row before that time.
const inFuture = `counted_to > now() + interval '1 hour'`

// countUntilSQL returns the time up to which Count counts: $1 seconds ago. It returns no row if less than $2 seconds
// before that time are uncounted.
const countUntilSQL = `
select now() - make_interval(secs => $1::float8) from overview_counted
where counted_to < now() - make_interval(secs => $1::float8 + $2::float8) or ` + inFuture

// lockCountedToSQL locks and returns counted_to, but at most $1. It returns no row if another process is counting, or if
// all time up to $1 is counted.
const lockCountedToSQL = `
select least(counted_to, $1::timestamptz) from overview_counted where counted_to < $1::timestamptz or ` + inFuture + ` for update skip locked`

const setCountedToSQL = `update overview_counted set counted_to = $1::timestamptz`

// bounds is Bounds in SQL. A test checks that both are equal.
const bounds = `array[0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400]::float8[]`

// addCountsSQL adds rows to the counters: those with a time from $1 on and before $2. $3 and $4 are the first ids of these
// times. $5 limits the number of queues with counters and that of apps with counters, and $6 the number of claims of one task.
// class says what name is: 0 a queue, 1 an app, 2 empty. kind and key are the columns of overview_totals. The reasons 5 and 6
// are expired and cancelled. BETWEEN and ORDER BY make Postgres read the claims of a task in the order of the index and stop at
// the limit; a bitmap scan would read all of them.
const addCountsSQL = `
with counted (class, name, kind, key, since, n, seconds, last_at) as (
    select 0, queue, 1, 0, date_bin('5 minutes', created_at, 'epoch'), count(*), 0::float8, null::timestamptz
    from tasks where id >= $3::uuid and id < $4::uuid
    group by queue, 5
    union all
    select case when grouping(app_id) = 0 then 1 else 0 end, coalesce(app_id, queue),
        case when grouping(reason) = 0 then 3 when grouping(duration) = 0 then 4 when grouping(wait) = 0 then 6 when grouping(app_id) = 0 then 10 else 2 end,
        coalesce(reason, duration, wait, 0), since,
        case when grouping(app_id, reason, duration, wait) = 15 then coalesce(sum(claims), 0) else count(*) end,
        case when grouping(duration) = 0 then sum(lasted) when grouping(wait) = 0 then sum(waited) else 0 end,
        case when grouping(app_id) = 0 then max(last_claim) end
    from (
        select t.queue, d.reason, d.reported_at, date_bin('5 minutes', d.reported_at, 'epoch') as since, d.app_id, s.claims, s.last_claim,
            w.lasted, w.waited,
            case when d.reason not in (5, 6) then width_bucket(w.lasted, ` + bounds + `) end as duration, width_bucket(w.waited, ` + bounds + `) as wait
        from task_done d
        cross join lateral (select queue, created_at, greatest(created_at, send_at) as begun from tasks where id = d.id offset 0) t
        cross join lateral (
            select count(*) as claims, min(created_at) as first_claim, max(created_at) as last_claim
            from (
                select created_at from send_logs where task_id between d.id and d.id and created_at >= t.created_at and created_at < $2::timestamptz
                order by task_id limit $6::bigint
            ) c
        ) s
        cross join lateral (
            select greatest(extract(epoch from d.reported_at - t.begun)::float8, 0) as lasted,
                case when s.claims > 0 then greatest(extract(epoch from s.first_claim - t.begun)::float8, 0) end as waited
        ) w
        where d.reported_at >= $1::timestamptz and d.reported_at < $2::timestamptz
    ) d
    group by grouping sets ((queue), (queue, reason, since), (queue, duration), (queue, wait), (app_id))
    having (grouping(duration) = 1 or duration is not null) and (grouping(wait) = 1 or wait is not null)
        and (grouping(app_id) = 1 or app_id is not null)
    union all
    select case when grouping(app_id) = 0 then 1 else 0 end, coalesce(app_id, queue), case when grouping(app_id) = 0 then 9 else 5 end, 0, null,
        count(*), 0, null
    from (
        select t.queue, r.app_id
        from report_logs r cross join lateral (select queue from tasks where id = r.task_id offset 0) t
        where r.created_at >= $1::timestamptz and r.created_at < $2::timestamptz and r.verdict in ('timeout_retry', 'timeout_held', 'timeout_failed')
    ) r
    group by grouping sets ((queue), (app_id))
    having grouping(app_id) = 1 or app_id is not null
    union all
    select 1, app_id, 8, status, null, count(*), 0, max(created_at)
    from report_logs
    where created_at >= $1::timestamptz and created_at < $2::timestamptz and verdict = 'applied' and status in (2, 3) and app_id is not null
    group by app_id, status
    union all
    select 2, '', 7, state, null, count(*), 0, null
    from webhook_deliveries where state <> 0 and finished_at >= $1::timestamptz and finished_at < $2::timestamptz
    group by state
), sizes as (
    select class, name, sum(n) as n, name = '' or exists (select from overview_totals o where o.kind = 0 and o.key = class and o.name = counted.name) as known
    from counted group by class, name
), names as (
    select class, name, case when known or row_number() over (partition by class, known order by n desc, name)
        <= $5::bigint - (select count(*) from overview_totals o where o.kind = 0 and o.key = class) then name else '' end as counted_as
    from sizes
), totals as (
    insert into overview_totals as t (kind, key, name, n, seconds, last_at)
    select kind, key, counted_as, sum(n), least(sum(seconds), 1e15), max(last_at)
    from counted join names using (class, name)
    group by kind, key, counted_as
    union all
    select distinct 0, class, counted_as, 0, 0::float8, null::timestamptz from names where counted_as <> ''
    on conflict (kind, key, name) do update set n = least(t.n, 1000000000000000000) + excluded.n, seconds = least(t.seconds + excluded.seconds, 1e15),
        last_at = greatest(t.last_at, excluded.last_at), counted_at = now()
)
insert into overview_throughput as t (since, queue, submitted, succeeded, failed)
select since, counted_as, coalesce(sum(n) filter (where kind = 1), 0), coalesce(sum(n) filter (where kind = 3 and key = 0), 0),
    coalesce(sum(n) filter (where kind = 3 and key > 0), 0)
from counted join names using (class, name)
where since is not null and since > now() - interval '1 day'
group by since, counted_as
on conflict (since, queue) do update set submitted = least(t.submitted, 1000000000000000000) + excluded.submitted,
    succeeded = least(t.succeeded, 1000000000000000000) + excluded.succeeded, failed = least(t.failed, 1000000000000000000) + excluded.failed`

const (
	forgetThroughputSQL = `delete from overview_throughput where since < now() - interval '1 day'`

	// forgetNamesSQL removes the counters of names for which nothing was counted in the last 30 days.
	forgetNamesSQL = `
with gone as materialized (
    select key, name from overview_totals where kind = 0 and counted_at < now() - interval '30 days'
)
delete from overview_totals t using gone
where t.name = gone.name and (t.kind = 0 and t.key = gone.key or gone.key = 0 and t.kind between 1 and 6 or gone.key = 1 and t.kind >= 8)`
)

// Count adds the rows that are older than lag to the counters. It does nothing if the uncounted time is shorter than both
// countEvery and lag. If ctx ends after a part is counted, Count returns nil, and a later call counts the rest. If ctx ends
// before that, Count returns an error, and a later call of the same Store tries a shorter part. Any number of calls may run
// at once.
func (st *Store) Count(ctx context.Context, lag time.Duration) error {
	var end time.Time
	every := min(countEvery, lag)
	err := st.db.Hot.QueryRow(ctx, countUntilSQL, lag.Seconds(), every.Seconds()).Scan(&end)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	counted := false
	maxPart := time.Duration(st.maxPart.Load())
	for err == nil {
		var part time.Duration
		part, err = st.countPart(ctx, end, maxPart)
		switch {
		case err == nil && part == 0:
			return nil
		case err == nil:
			counted = true
			if maxPart > 0 {
				maxPart = max(maxPart, growFactor*part)
			}
		case ctx.Err() != nil && counted:
			return nil
		case part > shortestPart && (ctx.Err() != nil || store.SQLState(err) == store.CodeQueryCanceled):
			shorter := part / shrinkFactor
			if maxPart == 0 {
				shorter = min(shorter, secondPart)
			}
			if maxPart = max(shorter, shortestPart); ctx.Err() == nil {
				err = nil
			}
		}
		st.maxPart.Store(int64(maxPart))
	}
	return store.Wrap("count for the overview", err)
}

// countPart counts the first part of the uncounted time before end. The part is at most maxPart long; 0 = no limit. countPart
// returns the length of the part, also if counting it fails. It returns 0 if no uncounted time is left or another process is counting.
func (st *Store) countPart(ctx context.Context, end time.Time, maxPart time.Duration) (part time.Duration, err error) {
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		var from time.Time
		err := tx.QueryRow(ctx, lockCountedToSQL, end).Scan(&from)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		to := end
		if maxPart > 0 && maxPart < to.Sub(from) {
			to = from.Add(maxPart)
		}
		part = to.Sub(from)
		limit := st.countTime
		if part <= shortestPart {
			limit = tasks.LongestCount
		}
		var batch pgx.Batch
		batch.Queue(tasks.CountingSQL, fmt.Sprintf("%dms", limit.Milliseconds()))
		batch.Queue(addCountsSQL, from, to, task.IDFloor(from), task.IDFloor(to), MaxNames, maxClaims)
		batch.Queue(forgetThroughputSQL)
		batch.Queue(forgetNamesSQL)
		batch.Queue(setCountedToSQL, to)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return part, err
}

// counter is a row of overview_totals.
type counter struct {
	kind, key int16
	name      string
	n         int64
	seconds   float64
	last      time.Time
}

func (c counter) addToTotals(t *Totals) {
	switch {
	case c.kind == kindSubmitted:
		t.Submitted += c.n
	case c.kind == kindClaims:
		t.Claims += c.n
	case c.kind == kindWaits:
		c.addToHistogram(&t.Wait)
	case c.kind == kindFinished && c.key == int16(task.NoReason):
		t.Succeeded += c.n
	case c.kind == kindFinished:
		if t.Failed == nil {
			t.Failed = map[task.Reason]int64{}
		}
		t.Failed[task.Reason(c.key)] += c.n
	case c.kind == kindDurations:
		c.addToHistogram(&t.Duration)
	case c.kind == kindTimeouts:
		t.LeaseTimeouts += c.n
	}
}

func (c counter) addToHistogram(h *Histogram) {
	if c.key >= 0 && int(c.key) < len(h.Counts) {
		h.Counts[c.key] += c.n
		h.Seconds += c.seconds
	}
}

func (c counter) addToWebhooks(w *Webhooks) {
	switch msg.DeliveryState(c.key) {
	case msg.DeliveryDelivered:
		w.Delivered += c.n
	case msg.DeliveryFailed:
		w.Failed += c.n
	}
}

func (c counter) addToSender(s *Sender) {
	switch {
	case c.kind == kindAppClaimed:
		s.LastClaim = later(s.LastClaim, c.last)
	case c.kind == kindAppTimeouts:
		s.Timeouts += c.n
	case c.kind == kindAppReports:
		s.LastReport = later(s.LastReport, c.last)
		switch int(c.key) {
		case task.Succeeded.Status():
			s.Succeeded += c.n
		case task.Failed.Status():
			s.Failed += c.n
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
