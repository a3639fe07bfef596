package tasks_test

import (
	"cmp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestFailureIsRetriedUntilNoRetryIsLeft(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 1 })
	db.MustSubmit(t, s)
	fail := func() tasks.Reported {
		c := db.Claim(t)[0]
		return db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed, ShouldRetry: true, Message: "no signal", ErrorCode: "E1"})
	}
	require.Equal(t, task.Pending, fail().Task.State)
	require.Equal(t, 1, db.Count(t, `select count(*) from sms_tasks where status = 0 and retry_count = 1 and processing_app_id is null and result = 'no signal'`))
	last := fail().Task
	require.Equal(t, task.Failed, last.State)
	require.Equal(t, task.RetriesExhausted, last.Reason)
	stored := db.MustTask(t, s.ID)
	require.Equal(t, "超过最大重试次数: no signal", stored.Result)
	require.Equal(t, "E1", stored.ErrorCode)
	require.Equal(t, 1, db.Count(t, `select count(*) from sms_tasks where status = 3 and processing_app_id is null`))
}

func TestLongErrorMessageIsCut(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 0 })
	db.MustSubmit(t, s)
	db.Claim(t)
	db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentFailed, ShouldRetry: true, Message: strings.Repeat("错", 600)})
	require.Equal(t, "超过最大重试次数: "+strings.Repeat("错", 490), db.MustTask(t, s.ID).Result)
}

func TestReportOfAnotherClaimIsStale(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	c := db.Claim(t)[0]
	for name, r := range map[string]task.Report{
		"another app":                 {TaskID: s.ID, AppID: "other", Outcome: task.SentOK},
		"the claim id of another app": {TaskID: s.ID, AppID: "other", ClaimID: c.ClaimID, Outcome: task.SentOK},
		"an id that no claim has":     {TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID + 1, Outcome: task.SentOK},
	} {
		require.Equal(t, task.Stale, db.MustReport(t, r).Verdict, name)
	}
	outs, errs := db.Tasks.Report([]*tasks.Report{{Report: task.Report{TaskID: s.ID, AppID: "app", CallerID: stranger, Outcome: task.SentOK}, Queues: []string{"wechat"}, Request: []byte(`{}`)}})
	require.NoError(t, errs[0])
	require.False(t, outs[0].Found, "the caller may not use the queue of the task")
	require.False(t, db.MustReport(t, task.Report{TaskID: task.NewID(), AppID: "app", Outcome: task.SentOK}).Found)
	require.Equal(t, task.Processing, db.MustTask(t, s.ID).State)
}

func TestReportsOfOneTaskInOneBatchAreDecidedInOrder(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	c := db.Claim(t)[0]
	report := func(outcome task.Outcome) *tasks.Report {
		return storetest.Report(task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: outcome})
	}
	outs, errs := db.Tasks.Report([]*tasks.Report{report(task.SentFailed), report(task.SentFailed), report(task.SentOK)})
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, []task.Verdict{task.Applied, task.Already, task.Stale}, []task.Verdict{outs[0].Verdict, outs[1].Verdict, outs[2].Verdict})
}

func TestReleasedTaskWaitsAndUsesNoRetry(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	delayed, immediate := storetest.Submission(), storetest.Submission()
	db.MustSubmit(t, delayed, immediate)
	require.Len(t, db.Claim(t), 2)
	db.MustReport(t, task.Report{TaskID: delayed.ID, AppID: "app", Outcome: task.Released, RetryAfter: time.Hour, Message: "quota"})
	stored := db.MustTask(t, delayed.ID)
	require.Equal(t, task.Scheduled, stored.State)
	require.Zero(t, stored.RetryCount)
	require.WithinDuration(t, time.Now().Add(time.Hour), stored.DueAt, 10*time.Second)
	db.MustReport(t, task.Report{TaskID: immediate.ID, AppID: "app", Outcome: task.Released})
	require.Len(t, db.Claim(t), 1)
}

func TestOneOfConcurrentReportsFinishesTask(t *testing.T) {
	t.Parallel()
	a, b := storetest.OpenTwo(t)
	for range 30 {
		s := storetest.Submission()
		a.MustSubmit(t, s)
		c := a.Claim(t)[0]
		var all sync.WaitGroup
		var applied [4]bool
		for i := range applied {
			all.Go(func() {
				err := storetest.RetryBusy(func() error {
					out, err := []*storetest.DB{a, b}[i%2].Report(task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK})
					applied[i] = err == nil && out.Verdict == task.Applied
					return err
				})
				if err != nil {
					t.Errorf("report: %v", err)
				}
			})
			all.Go(func() {
				_, _ = b.Tasks.Extend(t.Context(), tasks.Extension{TaskID: s.ID, AppID: "app", Lease: time.Hour, Sending: true}, nil)
			})
		}
		all.Wait()
		n := 0
		for _, ok := range applied {
			if ok {
				n++
			}
		}
		require.Equal(t, 1, n, "one of equal reports is applied, the others are repeats")
	}
	require.Zero(t, a.Count(t, `select count(*) from task_live`))
	require.Equal(t, 30, a.Count(t, `select count(*) from task_done where status = 2`))
}

func TestClaimedTaskIsNotCancelled(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	unclaimed, claimed := storetest.Submission(), storetest.Submission(storetest.InQueue("q"))
	db.MustSubmit(t, unclaimed, claimed)
	require.Len(t, db.Claim(t, storetest.FromQueue("q")), 1)
	for range 2 {
		cancelled, err := db.Tasks.Cancel(t.Context(), unclaimed.ID, nil)
		require.NoError(t, err)
		require.Equal(t, task.Cancelled, cancelled.Reason)
	}
	require.Empty(t, db.Claim(t))
	_, err := db.Tasks.Cancel(t.Context(), claimed.ID, nil)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.Tasks.Cancel(t.Context(), task.NewID(), nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	require.Zero(t, db.Count(t, `select count(*) from operator_actions`))
}

func TestManualChangesAreAudited(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	by := store.Operator{CallerID: 3, Name: "ann", RequestID: "r1", Reason: "the phone was off"}
	held := storetest.Submission(func(s *tasks.Submission) { s.OnUnknown = task.Hold })
	db.MustSubmit(t, held)
	db.Claim(t)
	db.MustReport(t, task.Report{TaskID: held.ID, AppID: "app", Outcome: task.SentUnknown})
	after, err := db.Tasks.Resolve(t.Context(), held.ID, task.ResolveFailed, by)
	require.NoError(t, err)
	require.Equal(t, task.Failed, after.State)
	_, err = db.Tasks.Resolve(t.Context(), held.ID, task.ResolveResend, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	after, err = db.Tasks.RetryFailed(t.Context(), held.ID, by)
	require.NoError(t, err)
	require.Equal(t, task.Pending, after.State)
	require.Len(t, db.Claim(t), 1)
	require.Equal(t, 2, db.Count(t, `select count(*) from operator_actions where subject = $1 and caller_name = 'ann' and before is not null and after is not null`, held.ID.String()))
}

func TestRetryWithBackoffIsScheduledAndPromoted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.Backoff = task.Backoff{"slow": {time.Hour, 2 * time.Hour}} })
	slow := storetest.InQueue("slow")
	fromSlow := storetest.FromQueue("slow")
	failed, timedOut, quick := storetest.Submission(slow), storetest.Submission(slow), storetest.Submission()
	db.MustSubmit(t, failed, timedOut, quick)
	require.Len(t, db.Claim(t, fromSlow), 2)
	require.Len(t, db.Claim(t), 1)
	failure := func(s *tasks.Submission) task.Report {
		return task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentFailed, ShouldRetry: true}
	}
	require.Equal(t, task.Pending, db.MustReport(t, failure(quick)).Task.State, "a task of a queue without a backoff is retried at once")
	retried := db.MustReport(t, failure(failed)).Task
	require.Equal(t, task.Scheduled, retried.State)
	require.WithinDuration(t, time.Now().Add(time.Hour), retried.DueAt, 10*time.Second)
	db.ExpireLeases(t)
	require.Empty(t, db.Claim(t, fromSlow), "a task whose lease expired waits too")
	recovered := db.MustTask(t, timedOut.ID)
	require.Equal(t, task.Scheduled, recovered.State)
	require.Equal(t, task.ResultTimeoutRetry, recovered.Result)
	require.WithinDuration(t, time.Now().Add(time.Hour), recovered.DueAt, 10*time.Second)
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.WithinDuration(t, retried.DueAt, swept.Next, 0)
	require.Equal(t, int64(2), db.MustStatistics(t).SMS.Live.Scheduled)

	db.Exec(t, `update task_live set due_at = now() where state = 0`)
	swept, err = db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, swept.Next)
	require.Equal(t, tasks.PendingByQueue{"slow": 2}, swept.Pending)
	require.Len(t, db.Claim(t, fromSlow), 2)
	retriedTwice := db.MustReport(t, failure(failed)).Task
	require.WithinDuration(t, time.Now().Add(2*time.Hour), retriedTwice.DueAt, 10*time.Second)
	require.Equal(t, 2, db.Count(t, `select retry_count from sms_tasks where task_id = $1 and status = 0`, failed.ID))
	late := task.Report{TaskID: failed.ID, AppID: "app", Outcome: task.SentOK}
	require.Equal(t, task.Applied, db.MustReport(t, late).Verdict, "a late success is applied while the task waits for its retry")
}

// Claims skip locked tasks: with a lock, a report could keep other senders from claiming a task.
func TestReportThatChangesNothingLocksNoTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	released, claimed, finished, waiting := storetest.Submission(), storetest.Submission(), storetest.Submission(), storetest.Submission()
	claimIDs := map[task.ID]int64{}
	for _, s := range []*tasks.Submission{claimed, finished, released} {
		db.MustSubmit(t, s)
		claimIDs[s.ID] = db.Claim(t)[0].ClaimID
	}
	db.MustReport(t, task.Report{TaskID: finished.ID, AppID: "app", ClaimID: claimIDs[finished.ID], Outcome: task.SentOK})
	db.MustReport(t, task.Report{TaskID: released.ID, AppID: "app", ClaimID: claimIDs[released.ID], Outcome: task.Released})
	db.MustSubmit(t, waiting)
	db.HoldLock(t, `select from task_live for update`)
	db.HoldLock(t, `select from task_done for update`)
	for name, c := range map[string]struct {
		task.Report
		want task.Verdict
	}{
		"of a task that nobody claimed":      {task.Report{TaskID: waiting.ID, ClaimID: 1, Outcome: task.SentOK}, task.Stale},
		"of another caller's claim":          {task.Report{TaskID: claimed.ID, CallerID: 7, ClaimID: claimIDs[claimed.ID], Outcome: task.SentOK}, task.Stale},
		"of another caller's finished claim": {task.Report{TaskID: finished.ID, CallerID: 7, ClaimID: claimIDs[finished.ID], Outcome: task.SentOK}, task.Stale},
		"of an older claim":                  {task.Report{TaskID: claimed.ID, ClaimID: claimIDs[finished.ID], Outcome: task.SentOK}, task.Stale},
		"of another app":                     {task.Report{TaskID: claimed.ID, AppID: "other", Outcome: task.SentOK}, task.Stale},
		"of a released claim":                {task.Report{TaskID: released.ID, ClaimID: claimIDs[released.ID], Outcome: task.SentFailed}, task.Stale},
		"that releases again":                {task.Report{TaskID: released.ID, ClaimID: claimIDs[released.ID], Outcome: task.Released}, task.Already},
		"that succeeds again":                {task.Report{TaskID: finished.ID, ClaimID: claimIDs[finished.ID], Outcome: task.SentOK}, task.Already},
		"of a failure after the success":     {task.Report{TaskID: finished.ID, ClaimID: claimIDs[finished.ID], Outcome: task.SentFailed}, task.Stale},
	} {
		c.AppID = cmp.Or(c.AppID, "app")
		out, err := db.Report(c.Report)
		require.NoError(t, err, name)
		require.Equal(t, c.want, out.Verdict, name)
		require.True(t, out.Found, name)
	}
}
