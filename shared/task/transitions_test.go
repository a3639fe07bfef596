package task

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	now   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	early = now.Add(-time.Minute)
	late  = now.Add(time.Hour)
)

// claimed returns a task that app a has claimed with claim 7.
func claimed(change ...func(*Task)) Task {
	t := Task{ID: NewID(), Queue: "default", MaxRetries: 3, State: Processing, DueAt: early, ClaimID: 7, AppID: "a"}
	for _, c := range change {
		c(&t)
	}
	return t
}

func TestReportOfOpenClaim(t *testing.T) {
	t.Parallel()
	exhausted := func(t *Task) { t.RetryCount = 3 }
	expired := func(t *Task) { t.ExpiresAt = early }
	policy := func(p Policy) func(*Task) { return func(t *Task) { t.OnUnknown = p } }
	for _, c := range []struct {
		name    string
		task    Task
		report  Report
		state   State
		reason  Reason
		retries int16
		result  string
	}{
		{"success is final", claimed(), Report{Outcome: SentOK}, Succeeded, NoReason, 0, ""},
		{"success after the expiry counts", claimed(expired), Report{Outcome: SentOK}, Succeeded, NoReason, 0, ""},
		{"a failure without retry is final", claimed(), Report{Outcome: SentFailed, Message: "bad number"}, Failed, Rejected, 0, "bad number"},
		{"a failure with retry is pending again", claimed(), Report{Outcome: SentFailed, ShouldRetry: true, Message: "no signal"}, Pending, NoReason, 1, "no signal"},
		{"no more than the allowed retries", claimed(exhausted), Report{Outcome: SentFailed, ShouldRetry: true, Message: "no signal"}, Failed, RetriesExhausted, 3, "超过最大重试次数: no signal"},
		{"an expired task is not retried", claimed(expired), Report{Outcome: SentFailed, ShouldRetry: true, Message: "x"}, Failed, Expired, 0, "x"},
		{"released is pending and uses no retry", claimed(exhausted), Report{Outcome: Released}, Pending, NoReason, 3, ""},
		{"released with a delay is scheduled", claimed(), Report{Outcome: Released, RetryAfter: time.Minute}, Scheduled, NoReason, 0, ""},
		{"unknown is resent", claimed(), Report{Outcome: SentUnknown}, Pending, NoReason, 1, ""},
		{"unknown is resent no more than allowed", claimed(exhausted), Report{Outcome: SentUnknown}, Failed, UnknownOutcome, 3, ""},
		{"unknown is held", claimed(policy(Hold)), Report{Outcome: SentUnknown}, Held, NoReason, 0, ""},
		{"unknown fails", claimed(policy(Fail)), Report{Outcome: SentUnknown}, Failed, UnknownOutcome, 0, ""},
		{"a final unknown is not resent", claimed(), Report{Outcome: SentUnknown, Final: true}, Failed, UnknownOutcome, 0, ""},
		{"a final unknown is not held", claimed(policy(Hold)), Report{Outcome: SentUnknown, Final: true}, Failed, UnknownOutcome, 0, ""},
	} {
		c.report.AppID = "a"
		got, verdict := c.task.Report(c.report, nil, now)
		require.Equal(t, Applied, verdict, c.name)
		require.Equal(t, c.state, got.State, c.name)
		require.Equal(t, c.reason, got.Reason, c.name)
		require.Equal(t, c.retries, got.RetryCount, c.name)
		require.Equal(t, c.result, got.Result, c.name)

		again, verdict := got.Report(c.report, nil, now)
		require.Equal(t, Already, verdict, "%s: the same report again", c.name)
		require.Equal(t, got, again, c.name)
	}
}

// Every state, reason, ending and outcome is tested, with reports of the newest claim and of other claims.
func TestReportsKeepInvariants(t *testing.T) {
	t.Parallel()
	for state := Scheduled; state <= Failed; state++ {
		for reason := NoReason; reason <= Cancelled; reason++ {
			if (state == Failed) != (reason != NoReason) {
				continue
			}
			for ended := Open; ended <= EndedByOperator; ended++ {
				for outcome := SentOK; outcome <= Released; outcome++ {
					before := Task{State: state, Reason: reason, Ended: ended, ClaimID: 7, AppID: "a", ClaimedBy: new(int64(5)), MaxRetries: 3}
					for _, r := range []Report{{AppID: "a"}, {AppID: "a", ClaimID: 7}, {AppID: "a", ClaimID: 6}, {AppID: "b"}, {AppID: "b", ClaimID: 7},
						{AppID: "a", CallerID: 6}, {AppID: "a", ClaimID: 7, CallerID: 6}} {
						r.Outcome = outcome
						if r.CallerID == 0 {
							r.CallerID = 5
						}
						after, verdict := before.Report(r, nil, now)
						isNewest := r.AppID == "a" && r.ClaimID != 6 && r.CallerID == 5
						switch {
						case verdict != Applied:
							require.Equal(t, before, after, "only an applied report changes something")
						case !isNewest:
							require.Fail(t, "a report of another claim was applied", "%+v %+v", before, r)
						case state.Final():
							require.Equal(t, Failed, state, "a success is never undone")
							require.Equal(t, Succeeded, after.State, "a report undoes a failure only by a success")
						}
						if isNewest && state == Processing {
							require.Equal(t, Applied, verdict)
						}
						require.Equal(t, after.State == Failed, after.Reason != NoReason)
					}
				}
			}
		}
	}
}

func TestReleaseDelayEndsAtExpiry(t *testing.T) {
	t.Parallel()
	soon := now.Add(time.Minute)
	for delay, due := range map[time.Duration]time.Time{time.Hour: soon, time.Second: now.Add(time.Second)} {
		got, _ := claimed(func(t *Task) { t.ExpiresAt = soon }).Report(Report{AppID: "a", Outcome: Released, RetryAfter: delay}, nil, now)
		require.Equal(t, Scheduled, got.State)
		require.Equal(t, due, got.DueAt)
	}
}

// If the caller of a claim is unknown, the app alone identifies the claim.
func TestAnyCallerMayReportClaimOfUnknownCaller(t *testing.T) {
	t.Parallel()
	before := Task{State: Processing, ClaimID: 7, AppID: "a"}
	for _, caller := range []int64{0, 5} {
		_, verdict := before.Report(Report{AppID: "a", CallerID: caller}, nil, now)
		require.Equal(t, Applied, verdict)
	}
}

func TestReportOfUnclaimedTaskIsStale(t *testing.T) {
	t.Parallel()
	_, verdict := Task{State: Pending}.Report(Report{Outcome: SentOK}, nil, now)
	require.Equal(t, Stale, verdict)
}

func TestSettleDue(t *testing.T) {
	t.Parallel()
	expired := func(t *Task) { t.ExpiresAt = early }
	exhausted := func(t *Task) { t.RetryCount = 3 }
	hold := func(t *Task) { t.OnUnknown = Hold }
	marks := func(t *Task) { t.MarksSending = true }
	marked := func(t *Task) { t.SendingAt = early }
	for _, c := range []struct {
		name    string
		task    Task
		state   State
		reason  Reason
		verdict Verdict
		result  string
	}{
		{"a scheduled task becomes pending", Task{State: Scheduled, DueAt: early, ExpiresAt: late}, Pending, NoReason, Promoted, ""},
		{"a scheduled task past its expiry fails", Task{State: Scheduled, DueAt: early, ExpiresAt: early}, Failed, Expired, ExpiredVerdict, ResultExpired},
		{"a pending task past its expiry fails", Task{State: Pending, DueAt: early, ExpiresAt: early}, Failed, Expired, ExpiredVerdict, ResultExpired},
		{"a zombie is retried", claimed(), Pending, NoReason, TimeoutRetry, "处理超时，自动重试"},
		{"a zombie without retries left fails", claimed(exhausted), Failed, TimedOut, TimeoutFailed, "处理超时，超过最大重试次数"},
		{"a zombie past its expiry fails", claimed(expired), Failed, Expired, ExpiredVerdict, ResultExpired},
		{"a zombie is held", claimed(hold), Held, NoReason, TimeoutHeld, ResultTimeoutUnknown},
		{"a zombie fails by its policy", claimed(func(t *Task) { t.OnUnknown = Fail }), Failed, UnknownOutcome, TimeoutFailed, ResultTimeoutUnknown},
		{"a claim that marks sends and has no mark is retried", claimed(hold, marks), Pending, NoReason, TimeoutRetry, "处理超时，自动重试"},
		{"a claim that marks sends and has no mark is retried even without retries left", claimed(exhausted, marks), Pending, NoReason, TimeoutRetry, "处理超时，自动重试"},
		{"a claim that marks sends and has no mark fails past its expiry", claimed(expired, exhausted, marks), Failed, Expired, ExpiredVerdict, ResultExpired},
		{"a claim with a mark and without retries left fails", claimed(exhausted, marks, marked), Failed, TimedOut, TimeoutFailed, "处理超时，超过最大重试次数"},
		{"a claim with a mark is held", claimed(hold, marks, marked), Held, NoReason, TimeoutHeld, ResultTimeoutUnknown},
	} {
		got, verdict := c.task.SettleDue(nil, now)
		require.Equal(t, c.state, got.State, c.name)
		require.Equal(t, c.reason, got.Reason, c.name)
		require.Equal(t, c.verdict, verdict, c.name)
		require.Equal(t, c.result, got.Result, c.name)
		if got.State == Pending {
			require.Equal(t, c.task.ExpiresAt, got.DueAt, "%s: a pending task falls due when it expires", c.name)
		}
	}
}

func TestManualChangesAreValidated(t *testing.T) {
	t.Parallel()
	changes := map[string]struct {
		do      func(Task) (Task, error)
		allowed []State
	}{
		"cancel":  {func(t Task) (Task, error) { return t.Cancel(now) }, []State{Scheduled, Pending}},
		"resolve": {func(t Task) (Task, error) { return t.Resolve(ResolveSucceeded, "seen", now) }, []State{Held}},
		"retry":   {func(t Task) (Task, error) { return t.Retry(now) }, []State{Failed}},
	}
	for name, v := range changes {
		for s := Scheduled; s <= Failed; s++ {
			before := Task{State: s}
			if s == Failed {
				before.Reason = Rejected
			}
			after, err := v.do(before)
			if !slices.Contains(v.allowed, s) {
				require.Equal(t, CodeConflict, CodeOf(err), "%s of a %s task", name, s)
				require.Equal(t, before, after)
				continue
			}
			require.NoError(t, err, "%s of a %s task", name, s)
			require.NotEqual(t, before.State, after.State)
		}
	}
}

func TestExpiredTaskIsNotRetried(t *testing.T) {
	t.Parallel()
	_, err := Task{State: Failed, Reason: Expired, ExpiresAt: early}.Retry(now)
	require.Equal(t, CodeConflict, CodeOf(err))
	_, err = Task{State: Held, ExpiresAt: early}.Resolve(ResolveResend, "x", now)
	require.Equal(t, CodeConflict, CodeOf(err))
	again, err := Task{State: Failed, Reason: RetriesExhausted, RetryCount: 3, MaxRetries: 3}.Retry(now)
	require.NoError(t, err)
	require.Zero(t, again.RetryCount)
}

func TestStatusNumbers(t *testing.T) {
	t.Parallel()
	numbers := map[State]int{Scheduled: 0, Pending: 0, Processing: 1, Held: 1, Succeeded: 2, Failed: 3}
	for s, n := range numbers {
		require.Equal(t, n, s.Status())
		parsed, ok := ParseState(s.String())
		require.True(t, ok)
		require.Equal(t, s, parsed)
	}
}

func TestCutCountsCharacters(t *testing.T) {
	t.Parallel()
	require.Equal(t, "处理", Cut("处理超时", 2))
	require.Equal(t, "处理", Cut("处理", 2))
	require.Equal(t, "ab", Cut("abc", 2))
	require.Equal(t, "", Cut("处", 0))
}

func TestResultErrorCode(t *testing.T) {
	t.Parallel()
	due := func(changes ...func(*Task)) Task {
		after, _ := claimed(changes...).SettleDue(nil, now)
		return after
	}
	report := func(r Report) Task {
		r.AppID, r.ShouldRetry = "a", true
		after, _ := claimed(func(t *Task) { t.RetryCount = 3 }).Report(r, nil, now)
		return after
	}
	cancelled, err := Task{State: Pending}.Cancel(now)
	require.NoError(t, err)
	for want, got := range map[[2]string]Task{
		{ResultTimeoutRetry, "timeout_retry"}:                    due(),
		{ResultTimeoutUnknown, "timeout_held"}:                   due(func(t *Task) { t.OnUnknown = Hold }),
		{ResultTimeoutUnknown, "timeout_failed"}:                 due(func(t *Task) { t.OnUnknown = Fail }),
		{ResultTimeoutExhausted, "timeout_failed"}:               due(func(t *Task) { t.RetryCount = 3 }),
		{ResultExpired, "expired"}:                               due(func(t *Task) { t.ExpiresAt = early }),
		{ResultCancelled, "cancelled"}:                           cancelled,
		{ResultExhaustedPrefix + "no carrier", "E7"}:             report(Report{Outcome: SentFailed, Message: "no carrier", ErrorCode: "E7"}),
		{ResultExhaustedPrefix + "no tone", "retries_exhausted"}: report(Report{Outcome: SentFailed, Message: "no tone"}),
	} {
		require.Equal(t, want, [2]string{got.Result, got.ErrorCode})
	}
	held := due(func(t *Task) { t.OnUnknown = Hold })
	resolved, err := held.Resolve(ResolveSucceeded, "the provider has it", now)
	require.NoError(t, err)
	require.Empty(t, resolved.ErrorCode, "a success has no error code")
	late, verdict := due().Report(Report{AppID: "a", Outcome: SentOK}, nil, now)
	require.Equal(t, Applied, verdict)
	require.Empty(t, late.ErrorCode, "a late success has no error code")
}
