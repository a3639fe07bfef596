package tasks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestStatisticsOfEmptyDatabaseAreZero(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	require.Zero(t, db.Count(t, `select count(*) from task_totals`))
	require.Equal(t, tasks.Statistics{}, db.MustStatistics(t))
}

func TestStatisticsCountEachStateByQueue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	later := func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) }
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(), storetest.Submission(), storetest.Submission(), storetest.Submission(later), storetest.Submission(storetest.InQueue("bulk")))
	claimed := db.ClaimAs(t, "app", 4)
	for i, report := range []task.Report{
		{Outcome: task.SentOK},
		{Outcome: task.SentFailed},
		{Outcome: task.SentFailed, ShouldRetry: true},
	} {
		report.TaskID, report.AppID = claimed[i].ID, "app"
		require.Equal(t, task.Applied, db.MustReport(t, report).Verdict)
	}
	db.Exec(t, `update task_live set updated_at = now() - interval '90 seconds' where queue = 'bulk'`)

	s := db.MustStatistics(t)
	require.Equal(t, int64(1), s.SMS.Succeeded)
	require.Equal(t, int64(1), s.SMS.Failed)
	require.Len(t, s.SMS.Queues, 2)
	require.Equal(t, "bulk", s.SMS.Queues[0].Queue)
	require.InDelta(t, 90, s.SMS.Live.OldestPending.Seconds(), 30, "the longest pending time in all queues")
	require.Less(t, s.SMS.Queues[1].OldestPending.Seconds(), 30.0)
	s.SMS.Live.OldestPending = nil
	require.Equal(t, tasks.LiveCounts{Scheduled: 1, PendingNew: 3, PendingRetry: 1, Processing: 1}, s.SMS.Live)

	var pendingNew, pendingRetry, processing, failed int64 // counted by the query of the original SMS API
	require.NoError(t, db.Read.QueryRow(t.Context(), `select
		count(case when status = 0 and retry_count = 0 then 1 end), count(case when status = 0 and retry_count > 0 then 1 end),
		count(case when status = 1 then 1 end), count(case when status = 3 then 1 end) from sms_tasks`).Scan(&pendingNew, &pendingRetry, &processing, &failed))
	require.Equal(t, []int64{pendingNew, pendingRetry, processing, failed}, []int64{s.SMS.Live.PendingNew, s.SMS.Live.PendingRetry, s.SMS.Live.Processing, s.SMS.Failed})
}

func TestStatisticsCountSubscribeMessagesSeparately(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission())
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: db.ClaimAs(t, "app", 1)[0].ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	out := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	db.MustSubscribe(t, storetest.Booking(2, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	db.MustSubscribe(t, storetest.Booking(3, `{}`))
	recorded := storetest.Booking(4, `{}`)
	recorded.Queue, recorded.AppID, recorded.Lease = task.RecordedQueue, "shop", time.Minute
	db.MustSubscribe(t, recorded)

	requireCounts := func(when string, lateSuccesses int64) {
		s := db.MustStatistics(t)
		require.Equal(t, []int64{1, 0}, []int64{s.SMS.Succeeded, s.SMS.Failed}, when)
		require.Equal(t, []int64{1 + lateSuccesses, 1 - lateSuccesses}, []int64{s.Subscribe.Succeeded, s.Subscribe.Failed}, when)
		require.Len(t, s.SMS.Queues, 1, when)
		require.Equal(t, []int64{1, 0}, []int64{s.SMS.Live.PendingNew, s.SMS.Live.Processing}, when)
		require.Len(t, s.Subscribe.Queues, 2, when)
		require.Equal(t, []int64{1, 1}, []int64{s.Subscribe.Live.PendingNew, s.Subscribe.Live.Processing}, when)
	}
	requireCounts("while the day is open", 0)
	require.Equal(t, 2, db.Count(t, `select count(*) from sms_tasks`))
	require.Zero(t, db.Count(t, `select count(*) from sms_tasks where status = $1`, task.Failed.Status()))

	db.Exec(t, `update task_done set reported_at = reported_at - interval '3 days'`)
	db.Exec(t, storetest.InsertClosedDaySQL, time.Now().AddDate(0, 0, -10), 0, 0)
	require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	require.Equal(t, 1, db.Count(t, `select count(*) from task_totals where succeeded = 1 and failed = 0 and subscribe_succeeded = 1 and subscribe_failed = 1`))
	requireCounts("once the day is closed", 0)

	db.Exec(t, `update task_done set reason = $1, ended = $2 where status = $3`, int16(task.TimedOut), int16(task.EndedByTimeout), task.Failed.Status())
	failed := db.MustTask(t, out.TaskID)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: out.TaskID, AppID: "wechat", ClaimID: failed.ClaimID, Outcome: task.SentOK}).Verdict)
	requireCounts("after a late success of a closed day", 1)
}

func TestSMSTasksShowQueueAndReason(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission(storetest.InQueue("bulk"))
	db.MustSubmit(t, s)
	require.Equal(t, 1, db.Count(t, `select count(*) from sms_tasks where queue = 'bulk' and reason is null`))
	_, err := db.Tasks.Cancel(t.Context(), s.ID, nil)
	require.NoError(t, err)
	for r := task.NoReason; r <= task.Cancelled; r++ {
		state := task.Failed
		if r == task.NoReason {
			state = task.Succeeded
		}
		db.Exec(t, `update task_done set reason = $1, status = $2`, int16(r), state.Status())
		require.Equal(t, 1, db.Count(t, `select count(*) from sms_tasks where coalesce(reason, '') = $1`, r.String()), "the name of reason %d", r)
	}
}

func TestForgedTotalsDoNotStopStatistics(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed)
		select day, 9e18, -9e18, 9e18, -9e18 from unnest('{2026-01-01, 2026-01-02}'::date[]) day`)
	db.Exec(t, `insert into subscribe_totals (day, caller_id, template_type, total, success, failed)
		select day, 9, 'booking', 9e18, 9e18, -9e18 from unnest('{2026-01-01, 2026-01-02}'::date[]) day`)
	require.Positive(t, db.MustStatistics(t).SMS.Succeeded)
	rates, err := db.Subscribe.TemplateRates(t.Context(), time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), nil)
	require.NoError(t, err)
	require.Len(t, rates, 1)
}
