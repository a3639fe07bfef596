package maintenance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// insertResults inserts n results (status 2 succeeded, 3 failed by timeout) that were reported at noon of a day.
func insertResults(t *testing.T, db *storetest.DB, day time.Time, status, n int) {
	t.Helper()
	reason := map[int]int{2: 0, 3: 3}[status]
	for range n {
		db.Exec(t, `
			with b as (
				insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
				values ($1, 0, 'default', 5, 3, 0, '13800138000', 'x') returning id)
			insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, reported_at)
			select id, $2, $3, 3, 4, 1, 'app', $4 from b`,
			task.NewID(), status, reason, day.Add(12*time.Hour))
	}
}

func TestClosedDayTotalsFollowWithdrawnResults(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	old := today.AddDate(0, 0, -4)
	insertResults(t, db, old, 2, 3)
	insertResults(t, db, old, 3, 1)
	insertResults(t, db, today.AddDate(0, 0, -2), 2, 1)
	db.Exec(t, storetest.InsertClosedDaySQL, today.AddDate(0, 0, -5), 100, 10)
	before := db.MustStatistics(t)
	require.Equal(t, []int64{104, 11}, []int64{before.SMS.Succeeded, before.SMS.Failed})

	done := make(chan error)
	for range 2 {
		go func() { done <- db.Maintenance.CloseDays(t.Context()) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, 1, db.Count(t, `select count(*) from task_totals where day = $1 and succeeded = 3 and failed = 1`, old))
	require.GreaterOrEqual(t, db.Count(t, `select count(*) from task_totals`), 4, "days without a result are closed too")
	require.Zero(t, db.Count(t, `select count(*) from task_totals where day >= $1`, today), "today is open")
	require.Equal(t, before, db.MustStatistics(t), "closing days does not change the statistics")

	late := storetest.Value[task.ID](t, db, `select id from task_done where status = 3`)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: late, AppID: "app", ClaimID: 1, Outcome: task.SentOK}).Verdict)
	after := db.MustStatistics(t)
	require.Equal(t, []int64{105, 10}, []int64{after.SMS.Succeeded, after.SMS.Failed})
	require.Equal(t, 1, db.Count(t, `select count(*) from task_totals where day = $1 and succeeded = 3 and failed = 0`, old))
}

// A day that takes longer to count than one call may take is counted in parts, over several calls.
func TestLongDayIsCountedInParts(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	day := today.AddDate(0, 0, -2)
	db.Exec(t, `
with b as (
	insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 20000)
	returning id, seq
)
insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, reported_at)
select id, 2 + seq % 2, 3 * (seq % 2), 3, 4, 1, 'app', $1::timestamptz + seq * interval '4 seconds' from b`, day)
	db.Exec(t, `
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data, caller_id, task_id, send_time)
select 'x', 'BOOKING', 'b', n, 9, 'o', '{}', 7, gen_random_uuid(), $1::timestamptz + n * interval '1 minute' from generate_series(0, 1439) n`, day)
	db.Exec(t, storetest.InsertClosedDaySQL, day.AddDate(0, 0, -1), 100, 10)
	db.Maintenance.SetCountTime(time.Millisecond)
	before := db.MustStatistics(t)
	require.Equal(t, []int64{10100, 10010}, []int64{before.SMS.Succeeded, before.SMS.Failed})
	requireMessages := func(success int64) {
		t.Helper()
		for _, since := range []time.Time{{}, day} {
			require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING", Total: 1440, Success: success}}, db.MustRates(t, since, nil))
		}
	}
	requireMessages(0)

	const partial = `select count(*) from task_totals where counted_to is not null`
	for more := true; db.Count(t, partial) == 0; {
		require.True(t, more, "the day is too long for one part")
		var err error
		more, err = db.Maintenance.CloseDaysUntil(t.Context(), time.Now().Add(time.Millisecond))
		require.NoError(t, err)
	}
	require.Equal(t, before, db.MustStatistics(t), "the part that is counted already is not counted twice")
	requireMessages(0)
	require.Positive(t, db.Count(t, `select count(*) from subscribe_totals`), "subscribe messages are counted in parts too")
	counted := storetest.Value[time.Time](t, db, `select counted_to from task_totals where day = $1`, day)
	require.True(t, counted.After(day) && counted.Before(day.AddDate(0, 0, 1)), "%v", counted)
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING", Total: int64(day.AddDate(0, 0, 1).Sub(counted).Minutes())}}, db.MustRates(t, counted, nil))
	db.Exec(t, `update subscribe_message_logs set send_status = 1 where business_id in (0, 1439)`)
	db.Exec(t, `update subscribe_message_logs set send_time = $1::timestamptz where business_id = 1438`, day)
	db.Exec(t, `update subscribe_message_logs set send_time = $1::timestamptz + interval '23 hours' where business_id = 1`, day)
	requireMessages(2)

	early := storetest.Value[task.ID](t, db, `select id from task_done where status = 3 and reported_at < $1 limit 1`, counted)
	late := storetest.Value[task.ID](t, db, `select id from task_done where status = 3 and reported_at >= $1 order by reported_at desc limit 1`, counted)
	for _, id := range []task.ID{early, late} {
		require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: id, AppID: "app", ClaimID: 1, Outcome: task.SentOK}).Verdict)
	}
	db.Exec(t, `delete from task_done where reported_at < $1`, counted)
	done := make(chan error)
	for range 2 { // another instance continues
		go func() { done <- other.Maintenance.CloseDays(t.Context()) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Zero(t, db.Count(t, partial))
	requireMessages(2)
	after := db.MustStatistics(t)
	require.Equal(t, []int64{10102, 10008}, []int64{after.SMS.Succeeded, after.SMS.Failed}, "no part was counted twice")
}

// The clock of the process that made the id was ahead of the database's.
func TestCloseDaysCountsResultOlderThanItsID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	made := time.Now().UTC().AddDate(0, 0, -5)
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended, reported_at) values ($1, 2, 0, 0, 5, $2)`, task.IDFloor(made), made.AddDate(0, 0, -1))
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	require.Equal(t, 1, db.Count(t, `select sum(succeeded)::int from task_totals`))
	require.Equal(t, int64(1), db.MustStatistics(t).SMS.Succeeded)
}

// A compromised function can write such a row. The id has the time 1970, where the count then begins.
func TestResultWithTheLowestIDDoesNotStopTheCount(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended, reported_at) values ($1, 2, 0, 0, 5, now())`, task.ID{})
	for db.Count(t, `select count(*) from task_totals`) == 0 {
		more, err := db.Maintenance.CloseDaysUntil(t.Context(), time.Now().Add(time.Millisecond))
		require.NoError(t, err)
		require.True(t, more, "the days from 1970 until yesterday need many calls")
	}
	require.Equal(t, 1, db.Count(t, `select count(*) from task_totals where day = '1970-01-01'`))
}

func TestCountingResultsUsesAnIndex(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `
		insert into task_done (id, status, reason, retry_count, ended, reported_at)
		select gen_random_uuid(), 2, 0, 0, 5, now() - interval '20 days' + i * interval '20 days' / 50000 from generate_series(1, 50000) i`)
	db.Exec(t, `vacuum analyze task_done`)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	plan := storetest.Explain(t, db.Read, "select", storetest.Statements(t)["statisticsSQL"], today)
	require.Contains(t, plan, "task_done_reported")
	require.NotContains(t, plan, "Seq Scan on task_done")
	plan = storetest.Explain(t, db.Retention, "set local enable_bitmapscan = on", maintenance.CountSQL, today, today, today.AddDate(0, 0, 1))
	require.Contains(t, plan, "task_done_reported")
}
