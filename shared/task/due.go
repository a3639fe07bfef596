package task

import "time"

// SettleDue decides what happens to a task whose DueAt has passed. If the task is claimed, its lease has expired (see
// expireLease). Any other task fails if its ExpiresAt has passed, and else becomes pending. backoff has the delays of
// retries.
func (t Task) SettleDue(backoff Backoff, now time.Time) (Task, Verdict) {
	switch {
	case t.State == Processing:
		return t.expireLease(backoff, now)
	case t.expired(now):
		return t.fail(Expired, now).withResult(ResultExpired, ExpiredVerdict)
	default:
		return t.wait(now, 0), Promoted
	}
}

// expireLease ends a claim whose lease has expired. A sender that marks sends and has not marked this task has not sent
// the message, so another send is safe (see retryUnsent). Otherwise the outcome is unknown, and OnUnknown decides.
func (t Task) expireLease(backoff Backoff, now time.Time) (next Task, v Verdict) {
	t.Ended = EndedByTimeout
	if t.MarksSending && t.SendingAt.IsZero() {
		next = t.retryUnsent(backoff, now)
	} else {
		next = t.settleUnknown(TimedOut, backoff, now)
	}
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

// retryUnsent retries a task that was not sent, unless the task has expired. It counts a retry if one is left: claims take
// tasks with fewer retries first, so a task that makes its senders crash does not delay new tasks. If no retry is left,
// the task is retried too: its senders, or what they depend on, were down.
func (t Task) retryUnsent(backoff Backoff, now time.Time) Task {
	switch {
	case t.expired(now):
		return t.fail(Expired, now)
	case t.RetryCount < t.MaxRetries:
		return t.retry(backoff, now)
	default:
		return t.wait(now, backoff.delay(t.Queue, t.RetryCount))
	}
}

// withResult sets the result, and the verdict as the error code.
func (t Task) withResult(result string, v Verdict) (Task, Verdict) {
	t.Attempt = Attempt{Result: result, ErrorCode: string(v)}
	return t, v
}
