package alerts_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

func withThresholds(c *stores.Config) {
	c.Alerts = task.AlertRules{FailureRate: task.Limits{"*": 0.2}, MinFinished: 20, Window: 5 * time.Minute, Backlog: task.Limits{"*": 10}}
}

// insertSucceeded inserts n tasks of a queue that succeeded just now.
func insertSucceeded(t *testing.T, db *storetest.DB, queue string, n int) {
	t.Helper()
	insertResults(t, db, queue, n, 0, task.NoReason, "")
}

// insertFailed inserts n tasks of a queue that were rejected just now.
func insertFailed(t *testing.T, db *storetest.DB, queue string, n int) {
	t.Helper()
	insertResults(t, db, queue, n, 0, task.Rejected, "")
}

// insertResults inserts n tasks of a queue. They ended the duration ago before now: if reason is NoReason, they succeeded,
// otherwise they failed.
func insertResults(t *testing.T, db *storetest.DB, queue string, n int, ago time.Duration, reason task.Reason, errorCode string) {
	t.Helper()
	db.Exec(t, `
with t as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
    select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid,
        0, $1, 5, 3, 0, '13800138000', 'x' from generate_series(1, $2) returning id
)
insert into task_done (id, status, reason, retry_count, ended, error_code, reported_at)
select id, case $4::smallint when 0 then 2 else 3 end, $4, 0, 1, nullif($5, ''), now() - make_interval(secs => $3) from t`, queue, n, ago.Seconds(), int16(reason), errorCode)
}

// check runs a check of the alerts, even if another ran a moment ago. again: another check is needed.
func check(t *testing.T, db *storetest.DB) (again bool) {
	t.Helper()
	db.Alerts.CheckSoon()
	db.Exec(t, `update upkeep set begun_at = '-infinity' where what = 'alerts'`)
	again, err := db.Alerts.Check(t.Context())
	require.NoError(t, err)
	return again
}

// onAll calls check for all instances at once, and reports whether it returned true for any of them.
func onAll(t *testing.T, instances []*storetest.DB, check func(*storetest.DB) (bool, error)) bool {
	t.Helper()
	var checks sync.WaitGroup
	var anyTrue atomic.Bool
	for _, db := range instances {
		checks.Go(func() {
			result, err := check(db)
			if err != nil {
				t.Error(err)
			}
			if result {
				anyTrue.Store(true)
			}
		})
	}
	checks.Wait()
	return anyTrue.Load()
}

func alertList(t *testing.T, db *storetest.DB) []alerts.Alert {
	t.Helper()
	page, _, err := db.Alerts.List(t.Context(), nil, alerts.Cursor{}, 50)
	require.NoError(t, err)
	return page
}

func TestConcurrentChecksRaiseAndClearOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	var events, raised, cleared atomic.Int64
	instances := make([]*storetest.DB, 5)
	for i := range instances {
		instances[i] = storetest.OpenAt(t, url, withThresholds, func(c *stores.Config) {
			c.OnEvents = func() { events.Add(1) }
			c.OnAlert = func(id task.ID, a task.Alert, isCleared bool) {
				want := task.Alert{Kind: task.AlertFailureRate, Queue: "q", Value: 0.25, Threshold: 0.2}
				if isCleared {
					want.Value = 0
					cleared.Add(1)
				} else {
					raised.Add(1)
				}
				if id.IsZero() || a != want {
					t.Error(id, a)
				}
			}
		})
	}
	checkAll := func() bool {
		return onAll(t, instances, func(db *storetest.DB) (again bool, err error) { return db.Alerts.CheckNow(context.Background()) })
	}
	db := instances[0]
	require.False(t, checkAll(), "no alert is open")
	for n := 1; n <= 3; n++ {
		insertSucceeded(t, db, "q", 15)
		insertFailed(t, db, "q", 5)
		require.True(t, checkAll(), "the alert is open")
		db.Exec(t, `update task_done set reported_at = reported_at - interval '10 minutes'`)
		require.False(t, checkAll(), "the alert is cleared")
		require.EqualValues(t, 2*n, events.Load())
		require.EqualValues(t, n, raised.Load())
		require.EqualValues(t, n, cleared.Load())
	}
	kinds, ids := db.Outbox(t)
	require.Equal(t, []string{"alert.raised", "alert.cleared", "alert.raised", "alert.cleared", "alert.raised", "alert.cleared"}, kinds)
	list := alertList(t, db)
	require.Len(t, list, 3, "one alert for each time that the rate was exceeded")
	for i, a := range list {
		require.Equal(t, task.Alert{Kind: task.AlertFailureRate, Queue: "q", Value: 0.25, Threshold: 0.2}, a.Alert)
		require.NotNil(t, a.ClearedAt)
		require.Zero(t, *a.ClearedValue)
		require.Equal(t, []task.ID{a.ID}, ids[4-2*i])
		require.Equal(t, []task.ID{a.ID}, ids[5-2*i])
	}
}

func TestOutdatedSnapshotChangesNoAlert(t *testing.T) {
	t.Parallel()
	slow, quick := storetest.OpenTwo(t, withThresholds)
	insertFailed(t, quick, "q", 20)
	early, err := slow.Alerts.ReadSnapshot(t.Context())
	require.NoError(t, err)
	check(t, quick)
	_, err = slow.Alerts.ApplySnapshot(t.Context(), early)
	require.NoError(t, err)
	require.Len(t, alertList(t, quick), 1, "the alert is open already")
	quick.Exec(t, `delete from task_done`)
	check(t, quick)
	_, err = slow.Alerts.ApplySnapshot(t.Context(), early)
	require.NoError(t, err)
	require.Len(t, alertList(t, quick), 1, "the snapshot was read before the alert was cleared")

	insertFailed(t, quick, "q", 20)
	again := check(t, slow)
	require.True(t, again)
	require.Len(t, alertList(t, quick), 2)
	late, err := slow.Alerts.ReadSnapshot(t.Context())
	require.NoError(t, err)
	late = late.WithoutQueues()
	for range 2 {
		_, err = quick.Alerts.ApplySnapshot(t.Context(), late)
		require.NoError(t, err)
	}
	kinds, _ := quick.Outbox(t)
	require.Equal(t, []string{"alert.raised", "alert.cleared", "alert.raised", "alert.cleared"}, kinds, "the second time, the snapshot clears nothing")
}

func TestFailureRateIncludesOnlyFailuresThatCount(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, withThresholds)
	insertResults(t, db, "wechat", 100, 0, task.Rejected, task.NoConsent)
	insertResults(t, db, "wechat", 100, 0, task.Expired, "")
	insertResults(t, db, "wechat", 100, 0, task.Cancelled, "E")
	insertResults(t, db, "wechat", 100, 10*time.Minute, task.Rejected, "E")
	insertSucceeded(t, db, "wechat", 16)
	require.False(t, check(t, db), "no failure counts: no further check is needed")
	insertResults(t, db, "wechat", 3, 0, task.TimedOut, "")
	require.True(t, check(t, db), "there are failures: another check is needed")
	require.Empty(t, alertList(t, db))
	insertSucceeded(t, db, "sms", 100)
	insertResults(t, db, "wechat", 2, 0, task.Rejected, "40003")
	require.True(t, check(t, db))
	require.Equal(t, task.Alert{Kind: task.AlertFailureRate, Queue: "wechat", Value: 5.0 / 21, Threshold: 0.2}, alertList(t, db)[0].Alert,
		"the rate is that of one queue")
	require.Len(t, alertList(t, db), 1)
}

func TestBacklogAlertClearsWhenTasksAreClaimed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, withThresholds)
	later := func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) }
	for range 10 {
		db.MustSubmit(t, storetest.Submission(), storetest.Submission(later), storetest.Submission(storetest.InQueue("bulk")))
	}
	require.False(t, check(t, db))
	require.Empty(t, alertList(t, db), "as many as the threshold; scheduled tasks do not count")
	db.MustSubmit(t, storetest.Submission())
	require.True(t, check(t, db))
	require.Equal(t, task.Alert{Kind: task.AlertBacklog, Queue: task.DefaultQueue, Value: 11, Threshold: 10}, alertList(t, db)[0].Alert)
	db.ClaimAs(t, "app", 2)
	require.True(t, check(t, db), "9 are not well below 10")
	db.ClaimAs(t, "app", 1)
	require.False(t, check(t, db))
	require.EqualValues(t, 8, *alertList(t, db)[0].ClearedValue)
}

func TestWithoutThresholdsOpenAlertsAreCleared(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	on, off := storetest.OpenAt(t, url, withThresholds), storetest.OpenAt(t, url)
	insertFailed(t, on, "q", 100)
	off.Maintain(t)
	require.Empty(t, alertList(t, off))
	require.True(t, check(t, on))
	off.Maintain(t)
	require.NotNil(t, alertList(t, off)[0].ClearedAt)
}

func TestCheckThatComesTooEarlyIsPostponed(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t, withThresholds)
	require.False(t, check(t, db))
	insertFailed(t, db, "q", 100)
	for _, instance := range []*storetest.DB{db, other} {
		again, err := instance.Alerts.Check(t.Context())
		require.NoError(t, err)
		require.True(t, again, "another check is needed")
		require.Empty(t, alertList(t, db))
	}
}

func TestOnFailedIsCalledOnlyForFailuresThatCount(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	db := storetest.Open(t, func(c *stores.Config) { c.OnFailed = func() { failures.Add(1) } })
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(), storetest.Submission())
	for i, r := range []struct {
		task.Report
		calls int64
	}{
		{task.Report{Outcome: task.SentOK}, 0},
		{task.Report{Outcome: task.SentFailed, ShouldRetry: true}, 0},
		{task.Report{Outcome: task.SentFailed, ErrorCode: task.NoConsent}, 0},
		{task.Report{Outcome: task.SentFailed}, 1},
	} {
		c := db.ClaimAs(t, "app", 1)[0]
		r.TaskID, r.AppID = c.ID, "app"
		require.Equal(t, task.Applied, db.MustReport(t, r.Report).Verdict)
		require.Equal(t, r.calls, failures.Load(), i)
	}
}

func TestOnlyAdminsReceiveAlertEvents(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, withThresholds)
	insertFailed(t, db, "q", 100)
	check(t, db)
	alert := alertList(t, db)[0].ID
	require.Zero(t, db.MustRecordEvent(t, alert, 1, "alert.raised"), "there is no endpoint")
	caller := func(name string, roles ...string) int64 {
		return storetest.Value[int64](t, db, `insert into callers (name, token_hash, roles, queues) values ($1, sha256('x'), $2, '{}') returning id`, name, roles)
	}
	ops, revoked := caller("ops", "submitter", "admin"), caller("revoked", "admin")
	var want []task.ID
	for _, e := range []webhooks.Endpoint{
		db.MustAddEndpoint(t, 0, "https://all.example"), db.MustAddEndpoint(t, 0, "https://raised.example", "alert.raised"),
		db.MustAddEndpoint(t, ops, "https://ops.example", "task.failed", "alert.raised"),
	} {
		want = append(want, e.ID)
	}
	db.MustAddEndpoint(t, 0, "https://cleared.example", "alert.cleared")
	db.MustAddEndpoint(t, caller("shop", "submitter"), "https://shop.example")
	db.MustAddEndpoint(t, revoked, "https://revoked.example")
	db.Exec(t, `update callers set revoked_at = now() where id = $1`, revoked)
	for range 2 {
		require.Equal(t, 3, db.MustRecordEvent(t, alert, 2, "alert.raised"))
	}
	got, err := store.QueryRows(t.Context(), db.Owner, pgx.RowTo[task.ID],
		`select d.endpoint_id from webhook_deliveries d join webhook_endpoints e on e.id = d.endpoint_id and e.caller_id = d.caller_id`)
	require.NoError(t, err)
	require.ElementsMatch(t, want, got, "once each")
}

func TestOpenAlertsComeFirstAlsoOverPages(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ids := make([]task.ID, 6)
	for i := range ids {
		ids[i] = task.NewID()
		db.Exec(t, `insert into alerts (id, kind, queue, value, threshold, cleared_at, cleared_value)
			values ($1, 'backlog', $2, 2, 1, case when $3 then now() end, case when $3 then 0 end)`, ids[i], fmt.Sprint(i), i%2 == 1)
	}
	want := []task.ID{ids[4], ids[2], ids[0], ids[5], ids[3], ids[1]}
	got, _ := storetest.Pages(t, func(after alerts.Cursor) ([]alerts.Alert, bool, error) {
		return db.Alerts.List(t.Context(), nil, after, 2)
	}, func(a alerts.Alert) alerts.Cursor { return alerts.Cursor{Open: a.ClearedAt == nil, ID: a.ID} })
	require.Equal(t, want, store.Column(got, func(a alerts.Alert) task.ID { return a.ID }))
}

func TestCheckReadsTheWindowOnly(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	insertResults(t, db, "q", 50_000, time.Hour, task.NoReason, "")
	insertFailed(t, db, "q", 500)
	db.Exec(t, `vacuum analyze`)
	since, all := time.Now().Add(-5*time.Minute), storetest.Statements(t)
	for name, args := range map[string][]any{"anyFailureSQL": {since}, "resultsSQL": {since, []string{}, 20}} {
		plan := storetest.Explain(t, db.Read, "select", all[name], args...)
		require.Contains(t, plan, "task_done_reported", "%s\n%s", name, plan)
		require.NotContains(t, plan, "Seq Scan", "%s\n%s", name, plan)
	}
}

func TestMissingJobIsAnError(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `delete from upkeep`)
	_, due, err := db.BeginJob(t.Context(), "alerts", time.Minute)
	require.ErrorContains(t, err, `no row "alerts"`)
	require.False(t, due)
	_, due, err = db.Messages.BeginTrim(t.Context())
	require.ErrorContains(t, err, `no row "events"`)
	require.False(t, due)
}

// Callers choose the names of queues, so there may be very many. A check reads all queues with an open alert or with a threshold of
// their own, and of the others at most maxCheckedQueues for each kind of alert.
func TestChecksOfManyQueuesAreBounded(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, withThresholds, func(c *stores.Config) {
		c.Alerts.Backlog = task.Limits{"*": 10, "watched": 1}
	})
	submitTo := func(queue string, queues, n int) { // n tasks to each of the queues <queue>1, <queue>2, …
		db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue)
			select gen_random_uuid(), 1, 5, 3, 0, $1 || i from generate_series(1, $2::integer) i, generate_series(1, $3::integer)`, queue, queues, n)
	}
	open := func() int { return db.Count(t, `select count(*) from alerts where cleared_at is null`) }
	submitTo("early", 1, 11)
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue)
		select gen_random_uuid(), 1, 5, 3, 0, 'watched' from generate_series(1, 2)`)
	insertFailed(t, db, "failing", 20)
	check(t, db)
	require.Equal(t, 3, open())
	submitTo("many", 1200, 12)
	db.Exec(t, `
with t as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
    select gen_random_uuid(), 0, 'few' || i, 5, 3, 0, '13800138000', 'x' from generate_series(1, 1200) i, generate_series(1, 2) returning id
)
insert into task_done (id, status, reason, retry_count, ended, reported_at) select id, 3, 1, 0, 1, now() from t`)
	check(t, db)
	require.InDelta(t, 1003, open(), 10, "the three alerts stay open, and one check raises about 1000 more")
	insertFailed(t, db, "next", 20)
	check(t, db)
	require.Equal(t, 1, db.Count(t, `select count(*) from alerts where queue = 'next'`), "queues with few results do not count towards the limit")
}
