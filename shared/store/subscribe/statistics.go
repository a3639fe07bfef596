package subscribe

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// TemplateRate counts the messages of one template type, or of all types that are not listed (type "").
type TemplateRate struct {
	TemplateType           string
	Total, Success, Failed int64
}

// rateColumns counts rows of subscribe_message_logs into the columns of subscribe_totals.
const rateColumns = `template_type, count(*) as total, count(*) filter (where send_status = 1) as success,
        count(*) filter (where send_status = 2) as failed`

// countedToSQL returns the time to which messages are counted in subscribe_totals, or the zero time if none are.
const countedToSQL = `
select coalesce((select coalesce(counted_to, (day + 1)::timestamp at time zone 'UTC') from task_totals order by day desc limit 1), '0001-01-01 00:00:00+00')`

// templateRatesSQL adds up the stored totals of the days in [$1, $2), the rows of the partial day before them in [$3, $4), and
// the rows that are not counted yet, from $5. $6 is the caller; null = all. Callers choose the types, so there may be very
// many types: the result has the 1000 types with most messages, and the sum of all others with an empty type. An attacker who
// controls a function can write any change of a total; least and greatest prevent an overflow.
const templateRatesSQL = `
with types as (
    select template_type, sum(total) as total, sum(success) as success, sum(failed) as failed
    from (
        select template_type, total, success, failed from subscribe_totals
        where day >= $1::date and day < $2::date and ($6::bigint is null or caller_id = $6)
        union all
        select template_type, total, success, failed from subscribe_total_changes
        where day >= $1::date and day < $2::date and ($6::bigint is null or caller_id = $6)
        union all
        (select ` + rateColumns + ` from subscribe_message_logs
        where send_time >= $3::timestamptz and send_time < $4::timestamptz and ($6::bigint is null or caller_id = $6) group by template_type)
        union all
        (select ` + rateColumns + ` from subscribe_message_logs
        where send_time >= $5::timestamptz and ($6::bigint is null or caller_id = $6) group by template_type)
    ) counts
    group by template_type
), listed as (
    select * from types where template_type <> '' and total > 0 order by total desc, template_type collate "C" limit 1000
)
select template_type, least(total, 1000000000000000000)::bigint, least(greatest(success, -1000000000000000000), 1000000000000000000)::bigint,
    least(greatest(failed, -1000000000000000000), 1000000000000000000)::bigint
from (
    select * from listed
    union all
    select '', sum(total), sum(success), sum(failed) from types
    where template_type not in (select template_type from listed) having sum(total) > 0
) rates
order by template_type = '', template_type`

// TemplateRates counts the messages of a caller since a time by template type, or of all callers if callerID is nil. It
// returns at most 1000 types and, last, the sum of all others. It reads the stored totals (see CountPart) and the rows
// that are not counted yet. If since is not midnight (UTC), the rest of that day is counted from its rows that are
// not archived.
func (st *Store) TemplateRates(ctx context.Context, since time.Time, callerID *int64) (rates []TemplateRate, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, snapshot, func(tx pgx.Tx) error {
		var countedTo time.Time
		if err := tx.QueryRow(ctx, countedToSQL).Scan(&countedTo); err != nil {
			return err
		}
		rates, err = store.QueryRows(ctx, tx, pgx.RowToStructByPos[TemplateRate], templateRatesSQL, append([]any{store.Unprepared}, rateArgs(since.UTC(), countedTo.UTC(), callerID)...)...)
		return err
	})
	return rates, store.Wrap("template rates", err)
}

// rateArgs returns the parameters of templateRatesSQL. since and countedTo are in UTC. subscribe_totals counts the
// messages before countedTo.
func rateArgs(since, countedTo time.Time, callerID *int64) []any {
	firstFullDay := nextMidnight(since)
	partialEnd, uncounted := firstFullDay, countedTo
	if !firstFullDay.Before(countedTo) {
		partialEnd, uncounted = since, since
	}
	return []any{firstFullDay, nextMidnight(countedTo), since, partialEnd, uncounted, callerID}
}

// nextMidnight returns the first midnight at or after a time. The time is in UTC.
func nextMidnight(at time.Time) time.Time {
	return at.Add(24*time.Hour - 1).Truncate(24 * time.Hour)
}

// storeAdded adds the counts in the CTE "added" to subscribe_totals. A type that has no row of its day and caller gets one
// as long as the day and caller have fewer than 1000 rows; types with more messages come first. The other types are added
// to the empty type. Once a day and caller have a row with the empty type, no other type gets a row, because the row with
// the empty type may count messages of that type. There are no joins, since the planner does not know how many rows are
// added.
const storeAdded = `, counts as (
    select day, caller_id, template_type, sum(total) as total, sum(success) as success, sum(failed) as failed,
        coalesce((select true from subscribe_totals t
            where t.caller_id = added.caller_id and t.day = added.day and t.template_type = added.template_type), false) as stored
    from added group by 1, 2, 3
), ranked as (
    select *, row_number() over (partition by day, caller_id, stored order by total desc, template_type collate "C") as rank from counts
), placed as (
    select *, max(case when stored or rank > 1 then null
        when (select true from subscribe_totals t where t.caller_id = ranked.caller_id and t.day = ranked.day and t.template_type = '') then 1000
        else (select count(*) from subscribe_totals t where t.caller_id = ranked.caller_id and t.day = ranked.day)
        end) over (partition by day, caller_id) as taken
    from ranked
), saved as (
    insert into subscribe_totals as t (day, caller_id, template_type, total, success, failed)
    select day, caller_id, case when stored or taken + rank <= 1000 then template_type else '' end,
        least(greatest(sum(total), -1000000000000000000), 1000000000000000000),
        least(greatest(sum(success), -1000000000000000000), 1000000000000000000),
        least(greatest(sum(failed), -1000000000000000000), 1000000000000000000)
    from placed group by 1, 2, 3 having sum(total) <> 0 or sum(success) <> 0 or sum(failed) <> 0
    on conflict (caller_id, day, template_type) do update
    set total = least(greatest(t.total, -1000000000000000000), 1000000000000000000) + excluded.total,
        success = least(greatest(t.success, -1000000000000000000), 1000000000000000000) + excluded.success,
        failed = least(greatest(t.failed, -1000000000000000000), 1000000000000000000) + excluded.failed
)
select count(*) from added`

// countPartSQL stores the totals of the messages in [$2, $3), a part of the day $1. The first part of a day includes the
// days before it that are not closed. The first part that is ever counted includes all earlier messages.
const countPartSQL = `
with added as (
    select (send_time at time zone 'UTC')::date as day, caller_id, ` + rateColumns + `
    from subscribe_message_logs
    where send_time < $3::timestamptz and send_time >= coalesce(nullif($2::timestamptz, $1::date::timestamp at time zone 'UTC'),
        (select max(day) + 1 from task_totals where day < $1::date and counted_to is null)::timestamp at time zone 'UTC', '-infinity')
    group by 1, 2, 3
)` + storeAdded

// mergeTotalsSQL merges at most $1 rows of subscribe_total_changes into the totals. It may delete them by ctid, since
// nothing updates them.
const mergeTotalsSQL = `
with added as (
    delete from subscribe_total_changes where ctid = any(array(select ctid from subscribe_total_changes limit $1)) returning *
)` + storeAdded

// lockSubscribeTotalsSQL lets only one transaction at a time decide which types get a row of their own.
const lockSubscribeTotalsSQL = `select pg_advisory_xact_lock(7310004)`

const maxMerged = 10_000 // changes that one call of MergeTotals merges

// CountPart stores the totals of the messages of a part of a day, in [from, to). tx must be the transaction that counts
// the results of the tasks of this part.
func CountPart(ctx context.Context, tx pgx.Tx, day, from, to time.Time) error {
	_, err := storeTotals(ctx, tx, countPartSQL, day, from, to)
	return err
}

// MergeTotals merges some of the changes of counted messages into the totals. more reports that changes may be left.
func MergeTotals(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	merged, err := storeTotals(ctx, tx, mergeTotalsSQL, maxMerged)
	return merged == maxMerged, err
}

// LockTotals takes the lock of CountPart and MergeTotals until the end of tx. They take it themselves, too.
func LockTotals(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockSubscribeTotalsSQL)
	return err
}

// storeTotals runs a statement that ends with storeAdded, and returns the number of rows in the CTE "added".
func storeTotals(ctx context.Context, tx pgx.Tx, sql string, args ...any) (added int, err error) {
	if err = LockTotals(ctx, tx); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, sql, append([]any{store.Unprepared}, args...)...).Scan(&added)
	return added, err
}
