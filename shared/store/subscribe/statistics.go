package subscribe

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
)

// TemplateRate is how many messages of a type of template were sent.
type TemplateRate struct {
	TemplateType           string
	Total, Success, Failed int64
}

// rateColumns count rows of subscribe_message_logs as those of subscribe_totals are.
const rateColumns = `template_type, count(*) as total, count(*) filter (where send_status = 1) as success,
        count(*) filter (where send_status = 2) as failed`

// templateRatesSQL adds the stored totals of whole days, $1 to before $2, to the
// rows of the begun day before them, $3 to before $4, and of the open days, from $5
// on. $6 is whose; null = everybody's.
const templateRatesSQL = `
select template_type, sum(total)::bigint, sum(success)::bigint, sum(failed)::bigint
from (
    select template_type, sum(total) as total, sum(success) as success, sum(failed) as failed from subscribe_totals
    where day >= $1::date and day < $2::date and ($6::bigint is null or caller_id = $6) group by template_type
    union all
    select ` + rateColumns + ` from subscribe_message_logs
    where send_time >= $3::timestamptz and send_time < $4::timestamptz and ($6::bigint is null or caller_id = $6) group by template_type
    union all
    select ` + rateColumns + ` from subscribe_message_logs
    where send_time >= $5::timestamptz and ($6::bigint is null or caller_id = $6) group by template_type
) counts
group by template_type having sum(total) > 0 order by template_type`

// TemplateRates counts the messages since a time, by type of template; of is whose, nil = everybody's. Of closed days the stored totals
// count (see CloseDays): what it costs grows with the messages since the last
// closed day and those of the day of since. Of that day archived messages are not
// counted, unless since is its beginning.
func (st *Store) TemplateRates(ctx context.Context, since time.Time, of *int64) (rates []TemplateRate, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, snapshot, func(tx pgx.Tx) error {
		var firstOpen time.Time
		if err := tx.QueryRow(ctx, tasks.FirstOpenDaySQL).Scan(&firstOpen); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, templateRatesSQL, append([]any{store.Unprepared}, ratesBetween(since.UTC(), firstOpen, of)...)...)
		if err != nil {
			return err
		}
		rates, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TemplateRate])
		return err
	})
	return rates, store.Wrap("template rates", err)
}

// ratesBetween are the parameters of templateRatesSQL: since is UTC, and the days
// before firstOpen are closed.
func ratesBetween(since, firstOpen time.Time, of *int64) []any {
	firstWhole := time.Date(since.Year(), since.Month(), since.Day(), 0, 0, 0, 0, time.UTC)
	if firstWhole.Before(since) {
		firstWhole = firstWhole.AddDate(0, 0, 1)
	}
	begunEnd, open := firstWhole, firstOpen
	if !since.Before(firstOpen) {
		begunEnd, open = since, since
	}
	return []any{firstWhole, firstOpen, since, begunEnd, open, of}
}

// closeSubscribeDaySQL counts the messages up to the end of a day that was closed
// just now, from the end of the last closed day before it; the first closed day has
// all before it.
const closeSubscribeDaySQL = `
insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
select (send_time at time zone 'UTC')::date, caller_id, ` + rateColumns + `
from subscribe_message_logs
where send_time < ($1::date + 1)::timestamp at time zone 'UTC'
    and send_time >= coalesce((select max(day) + 1 from task_totals where day < $1 and counted_to is null)::timestamp at time zone 'UTC', '-infinity')
group by 1, 2, 3`

// mergeTotalsSQL makes one row of those that add up (see move_subscribe_total).
const mergeTotalsSQL = `
with several as materialized (
    select day, caller_id, template_type from subscribe_totals group by 1, 2, 3 having count(*) > 1
), gone as (
    delete from subscribe_totals t using several s
    where t.day = s.day and t.caller_id = s.caller_id and t.template_type = s.template_type
    returning t.*
)
insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
select day, caller_id, template_type, least(sum(total), 1000000000000000000), greatest(least(sum(success), 1000000000000000000), 0),
    greatest(least(sum(failed), 1000000000000000000), 0)
from gone group by 1, 2, 3 having sum(total) > 0`

// CloseDay stores the totals of the messages of a day in the transaction
// that counts its last results.
func CloseDay(ctx context.Context, tx pgx.Tx, day time.Time) error {
	if _, err := tx.Exec(ctx, tasks.CountingSQL, fmt.Sprintf("%dms", tasks.LongestCount.Milliseconds())); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, closeSubscribeDaySQL, store.Unprepared, day); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, mergeTotalsSQL, store.Unprepared)
	return err
}
