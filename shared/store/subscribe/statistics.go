package subscribe

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
)

// TemplateRate counts the messages of one template type.
type TemplateRate struct {
	TemplateType           string
	Total, Success, Failed int64
}

// rateColumns counts rows of subscribe_message_logs into the columns of subscribe_totals.
const rateColumns = `template_type, count(*) as total, count(*) filter (where send_status = 1) as success,
        count(*) filter (where send_status = 2) as failed`

// templateRatesSQL adds up the stored totals of the closed days in [$1, $2), the rows of the partial day before them in
// [$3, $4), and the rows of the open days from $5. $6 is the caller; null = all. An attacker who controls a function can
// write any total; least and greatest prevent an overflow.
const templateRatesSQL = `
select template_type, least(sum(total), 1000000000000000000)::bigint, least(greatest(sum(success), -1000000000000000000), 1000000000000000000)::bigint,
    least(greatest(sum(failed), -1000000000000000000), 1000000000000000000)::bigint
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

// TemplateRates counts the messages of a caller since a time by template type, or of all callers if callerID is nil. It
// reads the stored totals of closed days (see CloseDay) and the rows of open days. If since is within a day, it reads the
// rows of that day, without archived messages.
func (st *Store) TemplateRates(ctx context.Context, since time.Time, callerID *int64) (rates []TemplateRate, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, snapshot, func(tx pgx.Tx) error {
		var firstOpen time.Time
		if err := tx.QueryRow(ctx, tasks.FirstOpenDaySQL).Scan(&firstOpen); err != nil {
			return err
		}
		rates, err = store.QueryRows(ctx, tx, pgx.RowToStructByPos[TemplateRate], templateRatesSQL, append([]any{store.Unprepared}, rateArgs(since.UTC(), firstOpen, callerID)...)...)
		return err
	})
	return rates, store.Wrap("template rates", err)
}

// rateArgs returns the parameters of templateRatesSQL. since is in UTC. The days before firstOpen are closed.
func rateArgs(since, firstOpen time.Time, callerID *int64) []any {
	firstFullDay := time.Date(since.Year(), since.Month(), since.Day(), 0, 0, 0, 0, time.UTC)
	if firstFullDay.Before(since) {
		firstFullDay = firstFullDay.AddDate(0, 0, 1)
	}
	partialEnd, open := firstFullDay, firstOpen
	if !since.Before(firstOpen) {
		partialEnd, open = since, since
	}
	return []any{firstFullDay, firstOpen, since, partialEnd, open, callerID}
}

// closeSubscribeDaySQL stores the totals of day $1 and of the open days before it. The first closed day includes all
// earlier messages.
const closeSubscribeDaySQL = `
insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
select (send_time at time zone 'UTC')::date, caller_id, ` + rateColumns + `
from subscribe_message_logs
where send_time < ($1::date + 1)::timestamp at time zone 'UTC'
    and send_time >= coalesce((select max(day) + 1 from task_totals where day < $1 and counted_to is null)::timestamp at time zone 'UTC', '-infinity')
group by 1, 2, 3`

// mergeTotalsSQL merges rows with the same day, caller and type into one (see move_subscribe_total).
const mergeTotalsSQL = `
with duplicates as materialized (
    select day, caller_id, template_type from subscribe_totals group by 1, 2, 3 having count(*) > 1
), deleted as (
    delete from subscribe_totals t using duplicates d
    where t.day = d.day and t.caller_id = d.caller_id and t.template_type = d.template_type
    returning t.*
)
insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
select day, caller_id, template_type, least(sum(total), 1000000000000000000), greatest(least(sum(success), 1000000000000000000), 0),
    greatest(least(sum(failed), 1000000000000000000), 0)
from deleted group by 1, 2, 3 having sum(total) > 0`

// CloseDay stores the totals of the messages of a day. tx must be the transaction that closes the day for tasks.
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
