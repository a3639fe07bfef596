package task

import "time"

// Due decides what happens to a task whose DueAt has passed: a scheduled task becomes pending, an
// expired task fails, and an expired lease makes the task a zombie, whose next try waits as backoff
// says.
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

// lapse ends a claim whose lease expired. A claim that promised to mark each send and marked none has
// not sent, so another try is safe; otherwise the outcome is unknown.
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

// withResult sets the original API's text as result and the verdict as error code.
func (t Task) withResult(result string, v Verdict) (Task, Verdict) {
	t.Attempt = Attempt{Result: result, ErrorCode: string(v)}
	return t, v
}
