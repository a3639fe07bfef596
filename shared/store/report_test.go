package store

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestAFailureIsRetriedUntilTheRetriesAreUsedUp(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message(func(s *Submission) { s.MaxRetries = 1 })
	db.mustSubmit(t, s)
	fail := func() Reported {
		c := db.claim(t)[0]
		return db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed, ShouldRetry: true, Message: "no signal", ErrorCode: "E1"})
	}
	require.Equal(t, task.Pending, fail().Task.State)
	require.Equal(t, 1, db.count(t, `select count(*) from sms_tasks where status = 0 and retry_count = 1 and processing_app_id is null and result = 'no signal'`))
	last := fail().Task
	require.Equal(t, task.Failed, last.State)
	require.Equal(t, task.RetriesExhausted, last.Reason)
	d := db.mustTask(t, s.ID)
	require.Equal(t, "超过最大重试次数: no signal", d.Result)
	require.Equal(t, "E1", d.ErrorCode)
	require.Equal(t, 1, db.count(t, `select count(*) from sms_tasks where status = 3 and processing_app_id is null`))
}

func TestALongErrorMessageIsCutAndNeverRefused(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message(func(s *Submission) { s.MaxRetries = 0 })
	db.mustSubmit(t, s)
	db.claim(t)
	db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentFailed, ShouldRetry: true, Message: strings.Repeat("错", 600)})
	require.Equal(t, "超过最大重试次数: "+strings.Repeat("错", 490), db.mustTask(t, s.ID).Result)
}

func TestALateSuccessOfTheNewestClaimStillCounts(t *testing.T) {
	t.Parallel()
	db := open(t)
	for name, s := range map[string]*Submission{
		"pending again": message(),
		"held":          message(func(s *Submission) { s.OnUnknown = task.Hold }),
		"failed":        message(func(s *Submission) { s.OnUnknown = task.Fail }),
		"exhausted":     message(func(s *Submission) { s.MaxRetries = 0 }),
	} {
		db.mustSubmit(t, s)
		c := db.claim(t)[0]
		db.lapse(t)
		_, err := db.Sweep(t.Context(), 500)
		require.NoError(t, err)
		late := task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed}
		require.Equal(t, task.Stale, db.mustReport(t, late).Verdict, "%s: a late failure is none", name)
		late.Outcome = task.SentOK
		require.Equal(t, task.Applied, db.mustReport(t, late).Verdict, name)
		require.Equal(t, task.Succeeded, db.mustTask(t, s.ID).State, name)
		require.Empty(t, db.claim(t), name)
	}
}

func TestAReportOfSomeoneElsesTaskChangesNothing(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message()
	db.mustSubmit(t, s)
	c := db.claim(t)[0]
	for name, r := range map[string]task.Report{
		"another app":  {TaskID: s.ID, AppID: "other", Outcome: task.SentOK},
		"a guessed id": {TaskID: s.ID, AppID: "other", ClaimID: c.ClaimID, Outcome: task.SentOK},
		"not a claim":  {TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID + 1, Outcome: task.SentOK},
	} {
		require.Equal(t, task.Stale, db.mustReport(t, r).Verdict, name)
	}
	outs, errs := db.Report([]*Report{{Report: task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}, Queues: []string{"wechat"}, Request: []byte(`{}`)}})
	require.NoError(t, errs[0])
	require.False(t, outs[0].Found, "a task of a queue that is not the caller's does not exist")
	require.False(t, db.mustReport(t, task.Report{TaskID: task.NewID(), AppID: "app", Outcome: task.SentOK}).Found)
	require.Equal(t, task.Processing, db.mustTask(t, s.ID).State)
}

func TestReportsOfOneTaskInOneBatchAreDecidedInOrder(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message()
	db.mustSubmit(t, s)
	c := db.claim(t)[0]
	report := func(o task.Outcome) *Report {
		return &Report{Report: task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: o}, Request: []byte(`{}`)}
	}
	outs, errs := db.Report([]*Report{report(task.SentFailed), report(task.SentFailed), report(task.SentOK)})
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, []task.Verdict{task.Applied, task.Already, task.Stale}, []task.Verdict{outs[0].Verdict, outs[1].Verdict, outs[2].Verdict})
}

func TestAReleasedTaskWaitsAndUsesNoRetry(t *testing.T) {
	t.Parallel()
	db := open(t)
	s, now := message(), message()
	db.mustSubmit(t, s, now)
	require.Len(t, db.claim(t), 2)
	db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.Released, RetryAfter: time.Hour, Message: "quota"})
	d := db.mustTask(t, s.ID)
	require.Equal(t, task.Scheduled, d.State)
	require.Zero(t, d.RetryCount)
	require.WithinDuration(t, time.Now().Add(time.Hour), d.DueAt, 10*time.Second)
	db.mustReport(t, task.Report{TaskID: now.ID, AppID: "app", Outcome: task.Released})
	require.Len(t, db.claim(t), 1)
}

func TestAnUnknownOutcomeIsTheSubmittersChoice(t *testing.T) {
	t.Parallel()
	db := open(t)
	for policy, want := range map[task.Policy]task.State{task.Resend: task.Pending, task.Hold: task.Held, task.Fail: task.Failed} {
		s := message(func(s *Submission) { s.OnUnknown = policy; s.Queue = policy.String() })
		db.mustSubmit(t, s)
		require.Len(t, db.claim(t, func(r *ClaimRequest) { r.Queue = policy.String() }), 1)
		require.Equal(t, want, db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentUnknown}).Task.State, policy)
	}
}

func TestAReportWhoseAnswerWasLostIsAppliedOnce(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := openAt(t, proxy.URL())
	s := message()
	db.mustSubmit(t, s)
	db.claim(t)
	fired := proxy.LoseAnswer(sandbox.Containing("insert into task_done"))
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	<-fired
	require.Equal(t, 1, db.count(t, `select count(*) from task_done`))
}

func TestReportsAndExtensionsAtTheSameTimeLeaveNoTaskInTwoPlaces(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	a, b := openAt(t, url), openAt(t, url)
	for range 30 {
		s := message()
		a.mustSubmit(t, s)
		c := a.claim(t)[0]
		var all sync.WaitGroup
		var applied [4]bool
		for i := range applied {
			all.Go(func() {
				err := asAsked(func() error {
					outs, errs := []*DB{a, b}[i%2].Report([]*Report{{Report: task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK}, Request: []byte(`{}`)}})
					applied[i] = errs[0] == nil && outs[0].Verdict == task.Applied
					return errs[0]
				})
				if err != nil {
					t.Errorf("report: %v", err)
				}
			})
			all.Go(func() {
				_, _ = b.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", Lease: time.Hour, Sending: true}, nil)
			})
		}
		all.Wait()
		n := 0
		for _, ok := range applied {
			if ok {
				n++
			}
		}
		require.Equal(t, 1, n, "one of equal reports is applied, the others are told so")
	}
	require.Zero(t, a.count(t, `select count(*) from task_live`))
	require.Equal(t, 30, a.count(t, `select count(*) from task_done where status = 2`))
}

func TestATaskIsCancelledOnlyBeforeASenderHasIt(t *testing.T) {
	t.Parallel()
	db := open(t)
	free, taken := message(), message(func(s *Submission) { s.Queue = "q" })
	db.mustSubmit(t, free, taken)
	require.Len(t, db.claim(t, func(r *ClaimRequest) { r.Queue = "q" }), 1)
	for range 2 {
		cancelled, err := db.Cancel(t.Context(), free.ID, nil)
		require.NoError(t, err)
		require.Equal(t, task.Cancelled, cancelled.Reason)
	}
	require.Empty(t, db.claim(t))
	_, err := db.Cancel(t.Context(), taken.ID, nil)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.Cancel(t.Context(), task.NewID(), nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	require.Zero(t, db.count(t, `select count(*) from operator_actions`))
}

func TestChangesByHandAreRecordedWithTheirChange(t *testing.T) {
	t.Parallel()
	db := open(t)
	by := Operator{CallerID: 3, Name: "ann", RequestID: "r1", Reason: "the phone was off"}
	held := message(func(s *Submission) { s.OnUnknown = task.Hold })
	db.mustSubmit(t, held)
	db.claim(t)
	db.mustReport(t, task.Report{TaskID: held.ID, AppID: "app", Outcome: task.SentUnknown})
	after, err := db.Resolve(t.Context(), held.ID, task.ResolveFailed, by)
	require.NoError(t, err)
	require.Equal(t, task.Failed, after.State)
	_, err = db.Resolve(t.Context(), held.ID, task.ResolveResend, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	after, err = db.RetryFailed(t.Context(), held.ID, by)
	require.NoError(t, err)
	require.Equal(t, task.Pending, after.State)
	require.Len(t, db.claim(t), 1)
	require.Equal(t, 2, db.count(t, `select count(*) from operator_actions where subject = $1 and caller_name = 'ann' and before is not null and after is not null`, held.ID.String()))
}

func TestARetryThatWaitsIsScheduledAndPromotedInTime(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Backoff = task.Backoff{"slow": {time.Hour, 2 * time.Hour}} })
	slow := func(s *Submission) { s.Queue = "slow" }
	fromSlow := func(r *ClaimRequest) { r.Queue = "slow" }
	failed, lapsed, quick := message(slow), message(slow), message()
	db.mustSubmit(t, failed, lapsed, quick)
	require.Len(t, db.claim(t, fromSlow), 2)
	require.Len(t, db.claim(t), 1)
	again := func(s *Submission) task.Report {
		return task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentFailed, ShouldRetry: true}
	}
	require.Equal(t, task.Pending, db.mustReport(t, again(quick)).Task.State, "a queue that is not named retries at once")
	waits := db.mustReport(t, again(failed)).Task
	require.Equal(t, task.Scheduled, waits.State)
	require.WithinDuration(t, time.Now().Add(time.Hour), waits.DueAt, 10*time.Second)
	db.lapse(t)
	require.Empty(t, db.claim(t, fromSlow), "what a claim finds lapsed waits as well")
	swept := db.mustTask(t, lapsed.ID)
	require.Equal(t, task.Scheduled, swept.State)
	require.Equal(t, task.ResultTimeoutRetry, swept.Result)
	require.WithinDuration(t, time.Now().Add(time.Hour), swept.DueAt, 10*time.Second)
	batch, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.WithinDuration(t, waits.DueAt, batch.Next, 0)
	require.Equal(t, int64(2), db.mustCount(t).Live.Scheduled)

	_, err = db.owner(t).Exec(t.Context(), `update task_live set due_at = now() where state = 0`)
	require.NoError(t, err)
	batch, err = db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, batch.Next)
	require.Equal(t, PendingByQueue{"slow": 2}, batch.Pending)
	require.Len(t, db.claim(t, fromSlow), 2)
	second := db.mustReport(t, again(failed)).Task
	require.WithinDuration(t, time.Now().Add(2*time.Hour), second.DueAt, 10*time.Second)
	require.Equal(t, 2, db.count(t, `select retry_count from sms_tasks where task_id = $1 and status = 0`, failed.ID))
	late := task.Report{TaskID: failed.ID, AppID: "app", Outcome: task.SentOK}
	require.Equal(t, task.Applied, db.mustReport(t, late).Verdict, "a late success ends the waiting")
}
