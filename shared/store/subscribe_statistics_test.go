package store

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
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
	db, conn := openAt(t, url), owner(t, url)
	began := time.Now()
	for sql := range strings.SplitSeq(strings.ReplaceAll(fillLists, "%[1]d", strconv.Itoa(rows)), ";") {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	t.Logf("%d messages written in %v", rows, time.Since(began).Round(time.Millisecond))
	yesterday := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
	began = time.Now()
	db.closeAt(t, yesterday)
	t.Logf("all days before today closed in %v", time.Since(began).Round(time.Millisecond))
	_, err := conn.Exec(t.Context(), `vacuum analyze subscribe_totals`)
	require.NoError(t, err)

	var table int
	require.NoError(t, conn.QueryRow(t.Context(), `select pg_relation_size('subscribe_message_logs') / 8192`).Scan(&table))
	all, few := (*int64)(nil), new(int64(999))
	now, firstOpen := time.Now().UTC(), yesterday.AddDate(0, 0, 1)
	rates := func(since time.Time, of *int64) []any { return ratesBetween(since, firstOpen, of) }
	oneDay := table/90 + 40 // the blocks of one day, and what finds them
	for name, c := range map[string]struct {
		sql    string
		args   []any
		blocks int // at most
	}{
		"statistics of a minute":                    {templateRatesSQL, rates(now.Add(-time.Minute), all), 60},
		"statistics of a minute, of one caller":     {templateRatesSQL, rates(now.Add(-time.Minute), few), 60},
		"statistics of a week":                      {templateRatesSQL, rates(now.AddDate(0, 0, -7), all), 2*oneDay + 400},
		"success rate of each template":             {templateRatesSQL, rates(time.Time{}, all), oneDay + 400},
		"success rate of each template, one caller": {templateRatesSQL, rates(time.Time{}, few), oneDay + 400},
		"newest failures":                           {failedLogsSQL, []any{timeOrInfinity(time.Time{}), 0, 10}, 40},
		"newest failures of one caller":             {failedLogsOfSQL, []any{timeOrInfinity(time.Time{}), 0, 10, *few}, 40},
		"failures of a page far behind":             {failedLogsSQL, []any{now.AddDate(0, 0, -45), 1, 10}, 40},
		"messages of one business event":            {businessLogsSQL, []any{"course_booking", "7", 0, all, 51}, 40},
		"the source's rates, run as they stand":     {sourceRates, nil, math.MaxInt},
		"the source's query of a booking": {`SELECT id, template_type, receiver_user_id, send_status, send_time, error_message
			FROM subscribe_message_logs WHERE business_type = 'course_booking' AND business_id = 123`, nil, 40},
		"the source's query of failures": {`SELECT id, template_type, business_id, receiver_user_id, error_code, error_message, send_time
			FROM subscribe_message_logs WHERE send_status = 2 ORDER BY send_time DESC LIMIT 10`, nil, 40},
	} {
		p := measure(t, db.read, c.sql, c.args...)
		t.Logf("%-42s %6d blocks of %d, %7.2f ms", name, p.blocks, table, p.ms)
		require.LessOrEqual(t, p.blocks, c.blocks, "%s\n%s", name, p.text)
	}
	require.Equal(t, rows, func() (n int) {
		for _, r := range db.mustRates(t, time.Time{}, nil) {
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
	require.NoError(t, pool.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) "+sql, append([]any{unprepared}, args...)...).Scan(&m.text))
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
