package task

import (
	"cmp"
	"time"
)

// Outcome is how an attempt ended, as the sender reports it.
type Outcome int16

// SentOK and SentFailed are reported as status 2 and 3, as in the original SMS API.
const (
	SentOK Outcome = iota
	SentFailed
	SentUnknown // the sender could not find out whether the message was sent
	Released    // returned without a try
)

func (o Outcome) ending() Ending {
	return [...]Ending{EndedSucceeded, EndedFailed, EndedUnknown, EndedReleased}[o]
}

// Report is a sender's report on one claim of one task.
type Report struct {
	TaskID      ID
	AppID       string
	CallerID    int64 // the reporting caller
	ClaimID     int64 // 0 = not given: the newest claim, if AppID and CallerID made it
	Outcome     Outcome
	ShouldRetry bool   // for SentFailed: the sender wants another try
	Final       bool   // for SentUnknown: no other try can succeed, so the task fails whatever its policy is
	Message     string // stored in Attempt.Result
	ErrorCode   string
	RetryAfter  time.Duration // for Released: delay before the next claim
	SentAt      time.Time     // when the message was sent, if reported
}

// Verdict is the effect of a report, a due time or a manual change. report_logs stores verdicts, but never Promoted.
type Verdict string

const (
	Applied           Verdict = "applied"
	Already           Verdict = "already"       // the claim has already ended with the same outcome
	Stale             Verdict = "stale_claim"   // not of the newest claim, or the claim has ended with another outcome; nothing changed
	Promoted          Verdict = "promoted"      // a scheduled task became pending
	TimeoutRetry      Verdict = "timeout_retry" // the lease expired; the task is retried
	TimeoutHeld       Verdict = "timeout_held"  // the lease expired; an operator decides
	TimeoutFailed     Verdict = "timeout_failed"
	ExpiredVerdict    Verdict = "expired" // ExpiresAt passed, perhaps during a lease that expired
	CancelledManually Verdict = "cancelled"
	ResolvedManually  Verdict = "resolved"
	RetriedManually   Verdict = "retried"
)

// Report applies a report. The returned task equals t unless the verdict is Applied. backoff has the delays of retries.
//
// A report that is not of the newest claim is Stale (see isOfNewestClaim). While the claim has not ended, a report is Applied.
// After that, a report with the outcome that ended the claim is Already, a late success is Applied if the task accepts it (see
// acceptsLateSuccess), and every other report is Stale.
func (t Task) Report(r Report, backoff Backoff, now time.Time) (Task, Verdict) {
	switch {
	case !t.isOfNewestClaim(r):
		return t, Stale
	case t.State == Processing:
		return t.applyOutcome(r, backoff, now), Applied
	case t.Ended == r.Outcome.ending():
		return t, Already
	case r.Outcome == SentOK && t.acceptsLateSuccess():
		return t.applyOutcome(r, backoff, now), Applied
	default:
		return t, Stale
	}
}

// isOfNewestClaim reports whether r is of the newest claim. App and caller must match, so that nobody can report on
// another sender's task with a guessed claim_id.
func (t Task) isOfNewestClaim(r Report) bool {
	return t.ClaimID != 0 && t.AppID == r.AppID && (r.ClaimID == 0 || r.ClaimID == t.ClaimID) && !t.IsForeign(r.CallerID)
}

// IsForeign reports whether another caller made the newest claim; false if the caller of the claim is not known.
func (t Task) IsForeign(caller int64) bool { return t.ClaimedBy != nil && *t.ClaimedBy != caller }

// acceptsLateSuccess reports whether a success that is reported after the newest claim has ended changes the task.
func (t Task) acceptsLateSuccess() bool {
	switch t.State {
	case Scheduled, Pending, Held:
		return true
	case Failed:
		return t.Reason == TimedOut || t.Reason == UnknownOutcome || t.Reason == Expired
	default:
		return false
	}
}

// applyOutcome ends the newest claim with the outcome of r, or replaces the claim's ending by a late success.
func (t Task) applyOutcome(r Report, backoff Backoff, now time.Time) Task {
	t.Ended = r.Outcome.ending()
	t.Attempt = Attempt{Result: Cut(r.Message, MaxResult), ErrorCode: r.ErrorCode}
	switch r.Outcome {
	case SentOK:
		t.SentAt = r.SentAt
		if t.SentAt.IsZero() {
			t.SentAt = now
		}
		return t.succeed(now)
	case Released:
		return t.wait(now, r.RetryAfter)
	case SentUnknown:
		if r.Final {
			return t.fail(UnknownOutcome, now)
		}
		return t.settleUnknown(UnknownOutcome, backoff, now)
	}
	switch {
	case !r.ShouldRetry:
		return t.fail(Rejected, now)
	case t.RetryCount >= t.MaxRetries:
		t.Result, t.ErrorCode = Cut(ResultExhaustedPrefix+r.Message, MaxResult), cmp.Or(r.ErrorCode, RetriesExhausted.String())
		return t.fail(RetriesExhausted, now)
	case t.expired(now):
		return t.fail(Expired, now)
	}
	return t.retry(backoff, now)
}

// settleUnknown applies OnUnknown to an attempt with unknown outcome. With Resend, exhausted is why the task fails if no
// retry is left.
func (t Task) settleUnknown(exhausted Reason, backoff Backoff, now time.Time) Task {
	switch {
	case t.OnUnknown == Hold:
		return t.hold()
	case t.OnUnknown == Fail:
		return t.fail(UnknownOutcome, now)
	case t.RetryCount >= t.MaxRetries:
		return t.fail(exhausted, now)
	case t.expired(now):
		return t.fail(Expired, now)
	}
	return t.retry(backoff, now)
}
