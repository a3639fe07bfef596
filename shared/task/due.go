package task

import "time"

// Due decides what happens to a task whose DueAt has passed: a scheduled task
// becomes pending, what is past its time fails, and a lease that ran out is a
// zombie (seed 001 sections 6.3.3 and 8.4), whose next try waits as backoff says.
func (t Task) Due(backoff Backoff, now time.Time) (Task, Verdict) {
	switch {
	case t.State == Processing:
		return t.lapse(backoff, now)
	case t.expired(now):
		return t.fail(Expired, now).withResult(ResultExpired, ExpiredVerdict)
	default:
		return t.wait(now, 0), Promoted
	}
}

// lapse ends the newest claim of a sender that fell silent. A claim that
// promised to mark each send and did not is known not to have sent, so it is
// safe to send again; of every other the outcome is unknown.
func (t Task) lapse(backoff Backoff, now time.Time) (Task, Verdict) {
	policy := t.OnUnknown
	if t.MarksSending && t.SendingAt.IsZero() {
		policy = Resend
	}
	t.Ended = EndedByTimeout
	next := t.settleUnknown(policy, TimedOut, backoff, now)
	switch {
	case next.State == Held:
		return next.withResult(ResultTimeoutUnknown, TimeoutHeld)
	case next.State == Pending || next.State == Scheduled:
		return next.withResult(ResultTimeoutRetry, TimeoutRetry)
	case next.Reason == TimedOut:
		return next.withResult(ResultTimeoutExhausted, TimeoutFailed)
	case next.Reason == Expired:
		return next.withResult(ResultExpired, ExpiredVerdict)
	default:
		return next.withResult(ResultTimeoutUnknown, TimeoutFailed)
	}
}

// withResult sets a result in the words of the original SMS API and the verdict as its
// error code, for programs and for readers of English.
func (t Task) withResult(result string, v Verdict) (Task, Verdict) {
	t.Result, t.ErrorCode = result, string(v)
	return t, v
}
