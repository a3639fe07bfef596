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

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// truth counts the rows themselves.
const truth = `
select template_type, count(*), count(*) filter (where send_status = 1), count(*) filter (where send_status = 2)
from subscribe_message_logs where send_time >= $1 and ($2::bigint is null or caller_id = $2) group by 1 order by 1`

// listRows is how many messages the lists are planned over: SENDONCE_LIST_ROWS, as
// make lists gives it, else few enough for every run of the tests.
func listRows(t *testing.T) int {
	text := os.Getenv("SENDONCE_LIST_ROWS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// The messages are of 90 days, a tenth of them failed; caller 999 has ten
// failures, from the oldest days.
const fillLists = `
set session_replication_role = replica;
alter table subscribe_message_logs set (autovacuum_enabled = off);
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	page_path, send_status, send_time, error_code, error_message, caller_id, task_id)
select 'tmpl-' || n % 20, 'TYPE_' || n % 20, 'course_booking', n / 4, n % 4, 'openid-' || n, '{"thing1": {"value": "瑜伽课"}}', 'pages/booking',
	case when n % 10 = 0 then 2 when n % 997 = 1 then 0 else 1 end, now() - interval '90 days' * (%[1]d - n) / %[1]d,
	case when n % 10 = 0 then '43101' end, case when n % 10 = 0 then 'user refuse to accept the msg' end,
	case when n <= 100 and n % 10 = 0 then 999 else 1 + n % 7 end, gen_random_uuid()
from generate_series(1, %[1]d) n;
vacuum analyze subscribe_message_logs;
reset session_replication_role`

func TestListsOfSubscribeMessagesReadOnlyWhatTheyShow(t *testing.T) {
	t.Parallel()
	rows := listRows(t)
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.Owner(t, url)
	began := time.Now()
	for sql := range strings.SplitSeq(strings.ReplaceAll(fillLists, "%[1]d", strconv.Itoa(rows)), ";") {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	t.Logf("%d messages written in %v", rows, time.Since(began).Round(time.Millisecond))
	yesterday := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
	began = time.Now()
	closeAt(t, db, yesterday)
	t.Logf("all days before today closed in %v", time.Since(began).Round(time.Millisecond))
	_, err := conn.Exec(t.Context(), `vacuum analyze subscribe_totals`)
	require.NoError(t, err)

	var table int
	require.NoError(t, conn.QueryRow(t.Context(), `select pg_relation_size('subscribe_message_logs') / 8192`).Scan(&table))
	all, few := (*int64)(nil), new(int64(999))
	now, firstOpen := time.Now().UTC(), yesterday.AddDate(0, 0, 1)
	rates := func(since time.Time, of *int64) []any { return subscribe.RatesBetween(since, firstOpen, of) }
	oneDay := table/90 + 40 // the blocks of one day, and what finds them
	for name, c := range map[string]struct {
		sql    string
		args   []any
		blocks int // at most
	}{
		"statistics of a minute":                    {subscribe.TemplateRatesSQL, rates(now.Add(-time.Minute), all), 60},
		"statistics of a minute, of one caller":     {subscribe.TemplateRatesSQL, rates(now.Add(-time.Minute), few), 60},
		"statistics of a week":                      {subscribe.TemplateRatesSQL, rates(now.AddDate(0, 0, -7), all), 2*oneDay + 400},
		"success rate of each template":             {subscribe.TemplateRatesSQL, rates(time.Time{}, all), oneDay + 400},
		"success rate of each template, one caller": {subscribe.TemplateRatesSQL, rates(time.Time{}, few), oneDay + 400},
		"newest failures":                           {subscribe.FailedLogsSQL, []any{store.TimeOrInfinity(time.Time{}), 0, 10}, 40},
		"newest failures of one caller":             {subscribe.FailedLogsOfSQL, []any{store.TimeOrInfinity(time.Time{}), 0, 10, *few}, 40},
		"failures of a page far behind":             {subscribe.FailedLogsSQL, []any{now.AddDate(0, 0, -45), 1, 10}, 40},
		"messages of one business event":            {subscribe.BusinessLogsSQL, []any{"course_booking", "7", 0, all, 51}, 40},
		"the source's rates, run as they stand":     {sourceRates, nil, math.MaxInt},
		"the source's query of a booking": {`SELECT id, template_type, receiver_user_id, send_status, send_time, error_message
			FROM subscribe_message_logs WHERE business_type = 'course_booking' AND business_id = 123`, nil, 40},
		"the source's query of failures": {`SELECT id, template_type, business_id, receiver_user_id, error_code, error_message, send_time
			FROM subscribe_message_logs WHERE send_status = 2 ORDER BY send_time DESC LIMIT 10`, nil, 40},
	} {
		p := measure(t, db.Read, c.sql, c.args...)
		t.Logf("%-42s %6d blocks of %d, %7.2f ms", name, p.blocks, table, p.ms)
		require.LessOrEqual(t, p.blocks, c.blocks, "%s\n%s", name, p.text)
	}
	require.Equal(t, rows, func() (n int) {
		for _, r := range db.MustRates(t, time.Time{}, nil) {
			n += int(r.Total)
		}
		return n
	}(), "and they count all")
}

// sourceRates must read every row: templateRatesSQL gives the same figures.
const sourceRates = `SELECT template_type, COUNT(*) as total, SUM(CASE WHEN send_status = 1 THEN 1 ELSE 0 END) as success,
	SUM(CASE WHEN send_status = 2 THEN 1 ELSE 0 END) as failed,
	ROUND(SUM(CASE WHEN send_status = 1 THEN 1 ELSE 0 END) * 100.0 / COUNT(*), 2) as success_rate
FROM subscribe_message_logs GROUP BY template_type`

type measured struct {
	text   string  // the plan as JSON
	blocks int     // read, cached or not
	ms     float64 // to execute
}

// measure runs a query for these very parameters and says what it read.
func measure(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) measured {
	t.Helper()
	var m measured
	require.NoError(t, pool.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) "+sql, append([]any{store.Unprepared}, args...)...).Scan(&m.text))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
		Ms float64 `json:"Execution Time"`
	}
	require.NoError(t, json.Unmarshal([]byte(m.text), &plans))
	m.blocks, m.ms = plans[0].Plan.Hit+plans[0].Plan.Read, plans[0].Ms
	return m
}

// ratesAreTrue compares TemplateRates with the rows, for several beginnings and
// callers.
func ratesAreTrue(t *testing.T, db *storetest.DB, conn *pgx.Conn) {
	t.Helper()
	now := time.Now().UTC()
	midnight := now.Truncate(24 * time.Hour)
	for _, since := range []time.Time{
		{}, now.AddDate(0, 0, -4), midnight.AddDate(0, 0, -3), midnight, now.Add(-time.Minute), now.Add(time.Hour),
	} {
		for _, of := range []*int64{nil, new(int64(8))} {
			rows, err := conn.Query(t.Context(), truth, since, of)
			require.NoError(t, err)
			want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[subscribe.TemplateRate])
			require.NoError(t, err)
			require.ElementsMatch(t, want, db.MustRates(t, since, of), "since %v", since)
		}
	}
}

func TestTemplateRatesAreThoseOfTheRows(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.Owner(t, url)
	ratesAreTrue(t, db, conn)
	_, err := conn.Exec(t.Context(), `
		insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
			message_data, caller_id, task_id, send_status, send_time)
		select 'x', 'TYPE_' || n % 3, 'b', n, 9, 'o', '{}', 7 + n % 2, gen_random_uuid(), n % 3, now() - interval '6 days' * n / 500
		from generate_series(0, 499) n`)
	require.NoError(t, err)
	ratesAreTrue(t, db, conn)

	closeAt(t, db, time.Now().AddDate(0, 0, -4))
	require.Positive(t, db.Count(t, `select count(*) from subscribe_totals where day < current_date - 4`), "the first closed day takes all before it")
	ratesAreTrue(t, db, conn)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	ratesAreTrue(t, db, conn)
	for _, change := range []string{
		`send_status = 1, send_time = now() where send_status = 2 and business_id % 4 = 0`,                     // sent again
		`send_status = 0 where send_status = 2 and business_id % 5 = 0`,                                        // being sent again
		`send_status = 1, send_time = send_time - interval '3 days' where send_status = 0`,                     // with a time that the sender gave
		`send_status = 2, send_time = send_time - interval '1 day' where send_time > now() - interval '1 day'`, // from an open day into a closed one
		`error_code = 'x'`,
	} {
		_, err = conn.Exec(t.Context(), `update subscribe_message_logs set `+change)
		require.NoError(t, err)
		ratesAreTrue(t, db, conn)
	}
	_, err = conn.Exec(t.Context(), `delete from task_totals where day = (select max(day) from task_totals)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `delete from subscribe_totals where day > (select max(day) from task_totals)`)
	require.NoError(t, err)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	ratesAreTrue(t, db, conn)
	require.Zero(t, db.Count(t, `select count(*) from (select from subscribe_totals group by day, caller_id, template_type having count(*) > 1) q`),
		"closing a day merges what adds up")

	before := db.MustRates(t, time.Time{}, nil)
	_, err = conn.Exec(t.Context(), `delete from subscribe_message_logs where send_time < current_date - 3`)
	require.NoError(t, err)
	require.Equal(t, before, db.MustRates(t, time.Time{}, nil), "what is archived stays counted")
}

// closeAt closes the UTC day of a time, whatever was closed before.
func closeAt(t *testing.T, db *storetest.DB, at time.Time) {
	t.Helper()
	day := at.UTC().Truncate(24 * time.Hour)
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Retention, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), storetest.InsertClosedDaySQL, day, 0, 0); err != nil {
			return err
		}
		return subscribe.CloseDay(t.Context(), tx, day)
	}))
}

// A message that failed on a closed day is ordered and sent again.
func TestAResendMovesItsMessageOutOfAClosedDay(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.Owner(t, url)
	db.MustSubscribe(t, storetest.Booking(1, `{}`))
	db.Try(t, task.Report{Outcome: task.SentFailed})
	db.Exec(t, `update subscribe_message_logs set send_time = now() - interval '3 days'`)
	db.Exec(t, `update task_done set reported_at = now() - interval '3 days'`)
	db.Exec(t, storetest.InsertClosedDaySQL, time.Now().AddDate(0, 0, -5), 0, 0)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_totals where failed = 1`))
	require.True(t, db.MustSubscribe(t, storetest.Booking(1, `{}`)).Again)
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING_CONFIRM", Total: 1, Success: 0, Failed: 0}}, db.MustRates(t, time.Time{}, nil))
	db.Try(t, task.Report{Outcome: task.SentOK})
	ratesAreTrue(t, db, conn)
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING_CONFIRM", Total: 1, Success: 1, Failed: 0}}, db.MustRates(t, time.Time{}, nil))
}
