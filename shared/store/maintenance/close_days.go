package maintenance

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// closeAfter is the least time between the end of a day (midnight UTC) and its count. reported_at is the time at which
// the transaction that stores a result began, and no such transaction takes so long.
const closeAfter = time.Hour

// unclosedSQL returns the last closed day, the day that is counted in part, the time up to which that day is counted,
// the lowest id of a final task, and now; each may be null, except now. The time in the id of a task is before its
// result.
const unclosedSQL = `
select (select max(day) from task_totals where counted_to is null), p.day, p.counted_to, (select id from task_done order by id limit 1), now()
from (select) one_row left join (select day, counted_to from task_totals where counted_to is not null order by day limit 1) p on true`

// lockCountingSQL waits for transactions that withdraw results or change counted subscribe messages: they take this
// lock in shared mode. It is a statement of its own before the count, so that the snapshot of the count includes their
// changes.
const lockCountingSQL = `select pg_advisory_xact_lock(` + tasks.TotalsLock + `)`

// countSQL adds the results of a part of the day $1, in [$2, $3), to the totals of the day, unless another instance has
// counted the part. An attacker who controls a function can write any total; least prevents an overflow.
const countSQL = `
insert into task_totals as t (day, succeeded, failed, subscribe_succeeded, subscribe_failed, counted_to)
select $1::date,` + tasks.ResultCounts + `,
    nullif($3::timestamptz, ($1::date + 1)::timestamp at time zone 'UTC')
from task_done
where reported_at >= $2::timestamptz and reported_at < $3::timestamptz
on conflict (day) do update
set succeeded = least(t.succeeded, 1000000000000000000) + excluded.succeeded, failed = least(t.failed, 1000000000000000000) + excluded.failed,
    subscribe_succeeded = least(t.subscribe_succeeded, 1000000000000000000) + excluded.subscribe_succeeded,
    subscribe_failed = least(t.subscribe_failed, 1000000000000000000) + excluded.subscribe_failed, counted_to = excluded.counted_to
where t.counted_to = $2::timestamptz`

const (
	shrinkFactor = 8 // a part that took too long is divided by this; a whole day becomes the shortest part in four divisions

	// The shortest part may take tasks.LongestCount. So all five tries of a part take less than the 30 s that a function
	// has for one event.
	shortestPart = time.Minute
)

// CloseDays stores the totals of every UTC day that ended at least closeAfter ago, so that Statistics need not count
// the day again. If a day takes too long, it is counted in parts; each part is a transaction of its own. When all days
// are counted, CloseDays merges the changes of counted subscribe messages. After an error, the next call continues with
// the part that failed. Any number of calls may run at once.
func (st *Store) CloseDays(ctx context.Context) error {
	_, err := st.closeDaysUntil(ctx, time.Time{})
	return store.Wrap("close days", err)
}

// closeDaysUntil is CloseDays with a time limit: after the time until (zero = no limit) it begins no count except the
// first. If no count is left, it merges at least once. more reports that work may be left.
func (st *Store) closeDaysUntil(ctx context.Context, until time.Time) (more bool, err error) {
	for first := true; ; first = false {
		open, now, err := st.firstOpenDay(ctx)
		if err != nil {
			return false, err
		}
		if open.day.IsZero() || open.end().Add(closeAfter).After(now) {
			return st.mergeSubscribeTotals(ctx, until)
		}
		if !first && !until.IsZero() && time.Now().After(until) {
			return true, nil
		}
		if err := st.countPart(ctx, open); err != nil {
			return false, err
		}
	}
}

// mergeSubscribeTotals merges the changes of counted subscribe messages into the totals. After the time until (zero = no
// limit) it begins no transaction except the first. more reports that changes may be left.
func (st *Store) mergeSubscribeTotals(ctx context.Context, until time.Time) (more bool, err error) {
	for {
		err = pgx.BeginFunc(ctx, st.db.Retention, func(tx pgx.Tx) error {
			more, err = subscribe.MergeTotals(ctx, tx)
			return err
		})
		if err != nil || !more || !until.IsZero() && time.Now().After(until) {
			return more, err
		}
	}
}

// openDay is a UTC day that is not closed. It is counted from its beginning to the time countedTo.
type openDay struct{ day, countedTo time.Time }

func (o openDay) end() time.Time { return o.day.AddDate(0, 0, 1) }

// firstOpenDay returns the first day that is not closed, and the database's time. This is the day that is counted in
// part, or else the day after the last closed day, or else the day before the oldest task with a result, but no day
// before 1970, since task_totals refuses these. The day is zero if there is neither a counted day nor a result.
func (st *Store) firstOpenDay(ctx context.Context) (open openDay, now time.Time, err error) {
	var last, partial, countedTo *time.Time
	var oldest *task.ID
	if err = st.db.Retention.QueryRow(ctx, unclosedSQL).Scan(&last, &partial, &countedTo, &oldest, &now); err != nil {
		return open, now, err
	}
	switch {
	case partial != nil:
		return openDay{*partial, *countedTo}, now, nil
	case last != nil:
		open.day = last.AddDate(0, 0, 1)
	case oldest != nil:
		// One day earlier, since the time in the id is by the clock of a process, which may be ahead of the database's.
		open.day = oldest.Time().Truncate(24*time.Hour).AddDate(0, 0, -1)
		if epoch := time.Unix(0, 0).UTC(); open.day.Before(epoch) {
			open.day = epoch
		}
	}
	open.countedTo = open.day
	return open, now, nil
}

// countPart counts the rest of a day, or only the beginning of this rest: if some hours of the day are counted already,
// it counts at most as many. If a count takes too long, countPart tries a shorter part.
func (st *Store) countPart(ctx context.Context, open openDay) error {
	span := open.end().Sub(open.countedTo)
	if done := open.countedTo.Sub(open.day); done > 0 {
		span = min(span, done)
	}
	for {
		limit := st.countTime
		if span <= shortestPart {
			limit = tasks.LongestCount
		}
		err := st.countResults(ctx, open.day, open.countedTo, open.countedTo.Add(span), limit)
		if store.SQLState(err) != store.CodeQueryCanceled || ctx.Err() != nil || span <= shortestPart {
			return err
		}
		span = max(span/shrinkFactor, shortestPart)
	}
}

// countResults counts the results and the subscribe messages of a day in [from, to), and closes the day if to is its
// end.
func (st *Store) countResults(ctx context.Context, day, from, to time.Time, limit time.Duration) error {
	return pgx.BeginFunc(ctx, st.db.Retention, func(tx pgx.Tx) error {
		// There are two counts, of results and of subscribe messages: each may take half of the limit.
		if _, err := tx.Exec(ctx, tasks.CountingSQL, fmt.Sprintf("%dms", max(limit.Milliseconds()/2, 1))); err != nil {
			return err
		}
		if err := subscribe.LockTotals(ctx, tx); err != nil { // before lockCountingSQL, since some reports wait for its lock
			return err
		}
		if _, err := tx.Exec(ctx, lockCountingSQL); err != nil {
			return err
		}
		counted, err := tx.Exec(ctx, countSQL, store.Unprepared, day, from, to)
		if err != nil || counted.RowsAffected() == 0 {
			return err
		}
		return subscribe.CountPart(ctx, tx, day, from, to)
	})
}
