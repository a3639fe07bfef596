package subscribe_test

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// countRowsSQL counts the rows of the messages instead of reading the stored totals.
const countRowsSQL = `
select template_type, count(*), count(*) filter (where send_status = 1), count(*) filter (where send_status = 2)
from subscribe_message_logs where send_time >= $1 and ($2::bigint is null or caller_id = $2) group by 1 order by 1`

// listRows returns the number of messages in the table: SENDONCE_LIST_ROWS, which "make lists" sets, or else 30,000.
func listRows(t *testing.T) int {
	text := os.Getenv("SENDONCE_LIST_ROWS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// insertMessagesSQL inserts messages of 90 days, of which a tenth failed. Caller 999 has ten messages of the oldest days, all failed.
const insertMessagesSQL = `
set session_replication_role = replica;
alter table subscribe_message_logs set (autovacuum_enabled = off);
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	page_path, send_status, send_time, error_code, error_message, caller_id, task_id)
select 'tmpl-' || n % 20, 'TYPE_' || n % 20, 'course_booking', n / 4, n % 4, 'openid-' || n, '{"thing1": {"value": "瑜伽课"}}', 'pages/booking',
	case when n % 10 = 0 then 2 when n % 997 = 1 then 0 else 1 end, now() - interval '90 days' * (%[1]d - n) / %[1]d,
	case when n % 10 = 0 then '43101' end, case when n % 10 = 0 then 'user refuse to accept the msg' end,
	case when n <= 100 and n % 10 = 0 then 999 else 1 + n % 7 end, gen_random_uuid()
from generate_series(1, %[1]d) n;
reset session_replication_role`

func TestSubscribeQueriesReadFewBlocks(t *testing.T) {
	t.Parallel()
	rows := listRows(t)
	db := storetest.Open(t)
	started := time.Now()
	db.Exec(t, strings.ReplaceAll(insertMessagesSQL, "%[1]d", strconv.Itoa(rows)))
	db.Exec(t, `vacuum analyze subscribe_message_logs`)
	t.Logf("inserted %d messages in %v", rows, time.Since(started).Round(time.Millisecond))
	yesterday := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
	started = time.Now()
	closeDayOf(t, db, yesterday)
	t.Logf("closed all days before today in %v", time.Since(started).Round(time.Millisecond))
	db.Exec(t, `vacuum analyze subscribe_totals`)
	tableBlocks := db.Count(t, `select pg_relation_size('subscribe_message_logs') / 8192`)
	allCallers, oneCaller := (*int64)(nil), new(int64(999))
	now, countedTo := time.Now().UTC(), yesterday.AddDate(0, 0, 1)
	rateArgs := func(since time.Time, callerID *int64) []any {
		return subscribe.RateArgs(since, countedTo, callerID)
	}
	oneDay := tableBlocks/90 + 40 // table blocks of one day, and index blocks
	for name, c := range map[string]struct {
		sql       string
		args      []any
		maxBlocks int
	}{
		"statistics of a minute":                    {subscribe.TemplateRatesSQL, rateArgs(now.Add(-time.Minute), allCallers), 60},
		"statistics of a minute, of one caller":     {subscribe.TemplateRatesSQL, rateArgs(now.Add(-time.Minute), oneCaller), 60},
		"statistics of a week":                      {subscribe.TemplateRatesSQL, rateArgs(now.AddDate(0, 0, -7), allCallers), 2*oneDay + 400},
		"success rate of each template":             {subscribe.TemplateRatesSQL, rateArgs(time.Time{}, allCallers), oneDay + 400},
		"success rate of each template, one caller": {subscribe.TemplateRatesSQL, rateArgs(time.Time{}, oneCaller), oneDay + 400},
		"newest failures":                           {subscribe.FailedLogsSQL, []any{store.TimeOrInfinity(time.Time{}), 0, 10}, 40},
		"newest failures of one caller":             {subscribe.FailedLogsOfCallerSQL, []any{store.TimeOrInfinity(time.Time{}), 0, 10, *oneCaller}, 40},
		"a late page of failures":                   {subscribe.FailedLogsSQL, []any{now.AddDate(0, 0, -45), 1, 10}, 40},
		"messages of one business event":            {subscribe.BusinessLogsSQL, []any{"course_booking", "7", 0, allCallers, 51}, 40},
		"original system: success rates":            {originalRatesSQL, nil, math.MaxInt},
		"original system: messages of a booking":    {originalMessagesSQL, nil, 40},
		"original system: newest failures":          {originalFailuresSQL, nil, 40},
	} {
		cost := explainAnalyze(t, db.Read, c.sql, c.args...)
		t.Logf("%-42s %6d blocks of %d, %7.2f ms", name, cost.blocks, tableBlocks, cost.ms)
		require.LessOrEqual(t, cost.blocks, c.maxBlocks, "%s\n%s", name, cost.plan)
	}
	total := 0
	for _, r := range db.MustRates(t, time.Time{}, nil) {
		total += int(r.Total)
	}
	require.Equal(t, rows, total, "the totals include every message")
}

type queryCost struct {
	plan   string  // as JSON
	blocks int     // read, cached or not
	ms     float64 // execution time
}

// explainAnalyze runs a query with a custom plan for its parameters and returns its cost.
func explainAnalyze(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) queryCost {
	t.Helper()
	var cost queryCost
	require.NoError(t, pool.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) "+sql, append([]any{store.Unprepared}, args...)...).Scan(&cost.plan))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
		Ms float64 `json:"Execution Time"`
	}
	require.NoError(t, json.Unmarshal([]byte(cost.plan), &plans))
	cost.blocks, cost.ms = plans[0].Plan.Hit+plans[0].Plan.Read, plans[0].Ms
	return cost
}

// requireRatesMatchRows compares TemplateRates with the rows, for several start times and callers.
func requireRatesMatchRows(t *testing.T, db *storetest.DB) {
	t.Helper()
	now := time.Now().UTC()
	midnight := now.Truncate(24 * time.Hour)
	for _, since := range []time.Time{
		{}, now.AddDate(0, 0, -4), midnight.AddDate(0, 0, -3), midnight, now.Add(-time.Minute), now.Add(time.Hour),
	} {
		for _, callerID := range []*int64{nil, new(int64(8))} {
			want, err := store.QueryRows(t.Context(), db.Owner, pgx.RowToStructByPos[subscribe.TemplateRate], countRowsSQL, since, callerID)
			require.NoError(t, err)
			require.ElementsMatch(t, want, db.MustRates(t, since, callerID), "since %v", since)
		}
	}
}

func TestTemplateRatesMatchRows(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	requireRatesMatchRows(t, db)
	db.Exec(t, `
		insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
			message_data, caller_id, task_id, send_status, send_time)
		select 'x', 'TYPE_' || n % 3, 'b', n, 9, 'o', '{}', 7 + n % 2, gen_random_uuid(), n % 3, now() - interval '6 days' * n / 500
		from generate_series(0, 499) n`)
	requireRatesMatchRows(t, db)

	closeDayOf(t, db, time.Now().AddDate(0, 0, -4))
	require.Positive(t, db.Count(t, `select count(*) from subscribe_totals where day < current_date - 4`), "closing the first day also counts all earlier days")
	requireRatesMatchRows(t, db)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	requireRatesMatchRows(t, db)
	for _, change := range []string{
		`send_status = 1, send_time = now() where send_status = 2 and business_id % 4 = 0`,                     // sent again
		`send_status = 0 where send_status = 2 and business_id % 5 = 0`,                                        // being sent again
		`send_status = 1, send_time = send_time - interval '3 days' where send_status = 0`,                     // with the send time that the sender reported
		`send_status = 2, send_time = send_time - interval '1 day' where send_time > now() - interval '1 day'`, // moved from an open day to a closed one
		`error_code = 'x'`,
	} {
		db.Exec(t, `update subscribe_message_logs set `+change)
		requireRatesMatchRows(t, db)
	}
	db.Exec(t, `delete from task_totals where day = (select max(day) from task_totals)`)
	db.Exec(t, `delete from subscribe_totals where day > (select max(day) from task_totals)`)
	db.Exec(t, `delete from subscribe_total_changes where day > (select max(day) from task_totals)`)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	requireRatesMatchRows(t, db)
	require.Zero(t, db.Count(t, `select count(*) from subscribe_total_changes`), "closing a day merges the changes")

	before := db.MustRates(t, time.Time{}, nil)
	db.Exec(t, `delete from subscribe_message_logs where send_time < current_date - 3`)
	require.Equal(t, before, db.MustRates(t, time.Time{}, nil), "archived messages still count")
}

// closeDayOf closes the UTC day of a time, even if the days before it are open.
func closeDayOf(t *testing.T, db *storetest.DB, at time.Time) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Retention, func(tx pgx.Tx) error {
		closeDayIn(t, tx, at)
		return nil
	}))
}

func closeDayIn(t *testing.T, tx pgx.Tx, at time.Time) {
	t.Helper()
	day := at.UTC().Truncate(24 * time.Hour)
	_, err := tx.Exec(t.Context(), storetest.InsertClosedDaySQL, day, 0, 0)
	require.NoError(t, err)
	require.NoError(t, subscribe.CountPart(t.Context(), tx, day, day, day.AddDate(0, 0, 1)))
}

// mergeTotals merges the changes of the totals.
func mergeTotals(t *testing.T, db *storetest.DB) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Retention, func(tx pgx.Tx) error {
		mergeTotalsIn(t, tx)
		return nil
	}))
}

func mergeTotalsIn(t *testing.T, tx pgx.Tx) {
	t.Helper()
	more, err := subscribe.MergeTotals(t.Context(), tx)
	require.NoError(t, err)
	require.False(t, more)
}

func TestSendingAgainMovesMessageOutOfClosedDay(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubscribe(t, storetest.Booking(1, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	db.Exec(t, `update subscribe_message_logs set send_time = now() - interval '3 days'`)
	db.Exec(t, `update task_done set reported_at = now() - interval '3 days'`)
	db.Exec(t, storetest.InsertClosedDaySQL, time.Now().AddDate(0, 0, -5), 0, 0)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_totals where failed = 1`))
	require.True(t, db.MustSubscribe(t, storetest.Booking(1, `{}`)).Again)
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING_CONFIRM", Total: 1, Success: 0, Failed: 0}}, db.MustRates(t, time.Time{}, nil))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	requireRatesMatchRows(t, db)
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING_CONFIRM", Total: 1, Success: 1, Failed: 0}}, db.MustRates(t, time.Time{}, nil))
}

// insertTypesSQL inserts messages of yesterday, all failed. Caller 7 has 1,200 types: two messages of each of the types 1 to 100, and one
// message of each other type. Caller 8 has one message.
const insertTypesSQL = `
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	caller_id, task_id, send_status, send_time)
select 'x', 'TYPE_' || to_char(1 + n % 1200, 'FM0000'), 'b', n, 9, 'o', '{}'::jsonb, 7, gen_random_uuid(), 2, now() - interval '1 day' from generate_series(0, 1299) n
union all
select 'x', 'BOOKING', 'b', 2000, 9, 'o', '{}', 8, gen_random_uuid(), 2, now() - interval '1 day'`

func TestRatesListThousandTypesAndTheSumOfTheRest(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, insertTypesSQL)
	requireTypes := func() {
		t.Helper()
		own := db.MustRates(t, time.Time{}, new(int64(7)))
		require.Len(t, own, 1001)
		require.Equal(t, []subscribe.TemplateRate{
			{TemplateType: "TYPE_0001", Total: 2, Failed: 2}, {TemplateType: "TYPE_1000", Total: 1, Failed: 1}, {TemplateType: "", Total: 200, Failed: 200},
		}, []subscribe.TemplateRate{own[0], own[999], own[1000]})
		all := db.MustRates(t, time.Time{}, nil)
		require.Len(t, all, 1001)
		require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING", Total: 1, Failed: 1}, {TemplateType: "", Total: 201, Failed: 201}}, []subscribe.TemplateRate{all[0], all[1000]})
		require.Equal(t, []subscribe.TemplateRate{all[0]}, db.MustRates(t, time.Time{}, new(int64(8))))
	}
	requireTypes()
	closeDayOf(t, db, time.Now().AddDate(0, 0, -1))
	require.Equal(t, 1001, db.Count(t, `select count(*) from subscribe_totals where caller_id = 7`), "a closed day has at most 1000 types of a caller, and the rest")
	requireTypes()

	const ofRest = `select total::int from subscribe_totals where template_type = '' and caller_id = 7`
	for _, change := range []struct {
		set       string
		rest, all int // messages of the empty type, and of all types, on the closed day
	}{
		{`send_time = now() where template_type = 'TYPE_1200'`, 199, 1299},
		{`send_time = now() where template_type = 'TYPE_0001'`, 199, 1297},
		{`send_time = now() - interval '1 day' where template_type = 'TYPE_1200'`, 200, 1298},
		{`send_time = now() - interval '1 day' where template_type = 'TYPE_0001'`, 200, 1300},
		{`send_status = 1 where template_type in ('TYPE_1200', 'TYPE_0002')`, 200, 1300},
	} {
		db.Exec(t, `update subscribe_message_logs set `+change.set)
		require.Equal(t, int64(1301), sumOf(db.MustRates(t, time.Time{}, nil)).Total, change.set)
		mergeTotals(t, db)
		require.Equal(t, int64(1301), sumOf(db.MustRates(t, time.Time{}, nil)).Total, change.set)
		require.Equal(t, change.rest, db.Count(t, ofRest), change.set)
		require.Equal(t, change.all, db.Count(t, `select sum(total)::int from subscribe_totals where caller_id = 7`), change.set)
	}
	require.Equal(t, subscribe.TemplateRate{Total: 1301, Success: 3, Failed: 1298}, sumOf(db.MustRates(t, time.Time{}, nil)))
	require.Equal(t, 1001, db.Count(t, `select count(*) from subscribe_totals where caller_id = 7`))
}

func sumOf(rates []subscribe.TemplateRate) (sum subscribe.TemplateRate) {
	for _, r := range rates {
		sum.Total, sum.Success, sum.Failed = sum.Total+r.Total, sum.Success+r.Success, sum.Failed+r.Failed
	}
	return sum
}

// insertTotalsSQL inserts 30,000 totals: of 30 days, 10 callers and 100 types.
const insertTotalsSQL = `
insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
select current_date - 1 - d, c, 'TYPE_' || n, 1, 1, 0 from generate_series(1, 30) d, generate_series(1, 10) c, generate_series(1, 100) n`

func TestClosingDayAndMergingReadOnlyWhatIsNew(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, insertTotalsSQL)
	db.Exec(t, `analyze subscribe_totals`)
	db.Exec(t, storetest.InsertClosedDaySQL, time.Now().UTC().AddDate(0, 0, -2), 0, 0)
	db.Exec(t, `
		insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
			caller_id, task_id, send_time)
		select 'x', 'TYPE_1', 'b', n, 9, 'o', '{}', 7, gen_random_uuid(), now() - interval '1 day' * n from generate_series(1, 3) n`)
	db.Exec(t, `update subscribe_message_logs set send_status = 1`)
	var read int
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Retention, func(tx pgx.Tx) error {
		closeDayIn(t, tx, time.Now().AddDate(0, 0, -1))
		mergeTotalsIn(t, tx)
		return tx.QueryRow(t.Context(), `select sum(seq_tup_read + idx_tup_fetch)::int from pg_stat_xact_user_tables where relname like 'subscribe_total%'`).Scan(&read)
	}))
	require.Less(t, read, 1000, "rows of totals that were read")
	require.Equal(t, 31, db.Count(t, `select count(*) from subscribe_totals where caller_id = 7 and template_type = 'TYPE_1'`), "the changes are added to the rows of their days")
}

// insertOthersSQL inserts 30,000 messages of callers 1 to 10, all of today.
const insertOthersSQL = `
set session_replication_role = replica;
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	caller_id, task_id) select 'x', 'TYPE_1', 'b', n, 9, 'o', '{}', 1 + n % 10, gen_random_uuid() from generate_series(1, 30000) n;
reset session_replication_role`

func TestRatesOfCallerDoNotReadRowsOfOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, insertOthersSQL)
	db.Exec(t, insertTotalsSQL)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			db.Exec(t, `vacuum analyze subscribe_message_logs`)
			db.Exec(t, `vacuum analyze subscribe_totals`)
		}
		today := time.Now().UTC().Truncate(24 * time.Hour)
		cost := explainAnalyze(t, db.Read, subscribe.TemplateRatesSQL, subscribe.RateArgs(time.Time{}, today, new(int64(999)))...)
		require.LessOrEqual(t, cost.blocks, 30, "analyzed %v\n%s", analyzed, cost.plan)
	}
}
