package task

import "time"

// Cancel withdraws a scheduled or pending task. Cancelling a cancelled task changes nothing.
func (t Task) Cancel(now time.Time) (Task, error) {
	switch {
	case t.State == Failed && t.Reason == Cancelled:
		return t, nil
	case t.State == Scheduled || t.State == Pending:
		t, _ = t.fail(Cancelled, now).withResult(ResultCancelled, CancelledManually)
		return t, nil
	default:
		return t, Refuse(CodeConflict, "the task is "+t.State.String()+"; only a scheduled or pending task can be cancelled")
	}
}

// Resolution is an operator's decision on a held task.
type Resolution string

const (
	ResolveSucceeded Resolution = "succeeded"
	ResolveFailed    Resolution = "failed"
	ResolveResend    Resolution = "resend"
)

// Resolve applies an operator's decision to a held task. reason becomes the task's result.
func (t Task) Resolve(how Resolution, reason string, now time.Time) (Task, error) {
	if t.State != Held {
		return t, Refuse(CodeConflict, "the task is "+t.State.String()+"; only a held task can be resolved")
	}
	t.Ended, t.Result = EndedByOperator, Cut(reason, MaxResult)
	switch how {
	case ResolveSucceeded:
		t.Attempt = Attempt{Result: t.Result, SentAt: now}
		return t.succeed(now), nil
	case ResolveFailed:
		return t.fail(UnknownOutcome, now), nil
	default:
		if t.expired(now) {
			return t, Refuse(CodeConflict, "the task expired; resolve it as succeeded or failed")
		}
		return t.wait(now, 0), nil
	}
}

// RetriedOnlyIfNamed reports whether a bulk retry includes the failed task only if its filter has the task's reason: the
// task was cancelled, or failed because its outcome is unknown.
func (t Task) RetriedOnlyIfNamed() bool { return t.Reason == Cancelled || t.Reason == UnknownOutcome }

// Retry makes a failed task pending again with all its retries. A task that was cancelled before its send
// time is scheduled for that time again, if it has not come yet.
func (t Task) Retry(now time.Time) (Task, error) {
	switch {
	case t.State != Failed:
		return t, Refuse(CodeConflict, "the task is "+t.State.String()+"; only a failed task can be retried")
	case t.expired(now):
		return t, Refuse(CodeConflict, "the task expired; submit it anew")
	}
	t.RetryCount = 0
	return t.wait(now, max(t.NotBefore.Sub(now), 0)), nil
}
