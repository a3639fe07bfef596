package task

import (
	"cmp"
	"time"
)

// Outcome is what a sender says of an attempt.
type Outcome int16

// The outcomes. SentOK and SentFailed are the seed's status 2 and 3.
const (
	SentOK Outcome = iota
	SentFailed
	SentUnknown // the sender cannot tell whether the message left
	Released    // not tried; given back
)

func (o Outcome) ending() Ending {
	return [...]Ending{EndedSucceeded, EndedFailed, EndedUnknown, EndedReleased}[o]
}

// Report is a sender's word on one claim of one task.
type Report struct {
	TaskID      ID
	AppID       string
	CallerID    int64 // who reports
	ClaimID     int64 // 0 = not given; then the app alone tells the claim, as in the seed
	Outcome     Outcome
	ShouldRetry bool   // SentFailed: the app's judgement that another try may help
	Message     string // kept as the result
	ErrorCode   string
	RetryAfter  time.Duration // Released: how long to wait before the next claim
	SentAt      time.Time     // when the message left, if the sender says so
}

// Verdict is what became of a report, or of a task that fell due; it is what
// report_logs keeps.
type Verdict string

// The verdicts.
const (
	Applied         Verdict = "applied"
	Already         Verdict = "already"       // the same report was applied before
	Stale           Verdict = "stale_claim"   // an older claim, or a contradiction of a final state; nothing changed
	Promoted        Verdict = "promoted"      // a scheduled task became pending
	TimeoutRetry    Verdict = "timeout_retry" // the lease ran out; the task is in line again
	TimeoutHeld     Verdict = "timeout_held"
	TimeoutFailed   Verdict = "timeout_failed"
	ExpiredVerdict  Verdict = "expired"
	CancelledByHand Verdict = "cancelled"
	ResolvedByHand  Verdict = "resolved"
	RetriedByHand   Verdict = "retried"
)

// Report decides what a report changes (seed 001 section 8.3, fenced). The
// returned task equals t unless the verdict is Applied. backoff is how long a retry
// waits.
//
// Only the newest claim is heard, and only from the caller that made it: for another
// caller every report is Stale. While it is open its report decides; after
// it ended, the same report again is Already, a late success still counts
// wherever the outcome was open, and everything else is Stale.
func (t Task) Report(r Report, backoff Backoff, now time.Time) (Task, Verdict) {
	switch {
	case !t.claimedBy(r):
		return t, Stale
	case t.State == Processing:
		return t.end(r, backoff, now), Applied
	case t.Ended == r.Outcome.ending():
		return t, Already
	case r.Outcome == SentOK && t.outcomeOpen():
		return t.end(r, backoff, now), Applied
	default:
		return t, Stale
	}
}

// claimedBy tells whether r speaks of the newest claim. The app must be the
// one that claimed, so that a guessed claim_id settles nobody else's task.
func (t Task) claimedBy(r Report) bool {
	return t.ClaimID != 0 && t.AppID == r.AppID && (r.ClaimID == 0 || r.ClaimID == t.ClaimID) && !t.IsForeign(r.CallerID)
}

// IsForeign tells whether the newest claim is known to be another caller's.
func (t Task) IsForeign(caller int64) bool { return t.ClaimedBy != nil && *t.ClaimedBy != caller }

// outcomeOpen tells whether a success of the newest claim is still news.
func (t Task) outcomeOpen() bool {
	switch t.State {
	case Scheduled, Pending, Held:
		return true
	case Failed:
		return t.Reason == TimedOut || t.Reason == UnknownOutcome || t.Reason == Expired
	default:
		return false
	}
}

func (t Task) end(r Report, backoff Backoff, now time.Time) Task {
	t.Ended, t.Result, t.ErrorCode = r.Outcome.ending(), Cut(r.Message, MaxResult), r.ErrorCode
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
		return t.settleUnknown(t.OnUnknown, UnknownOutcome, backoff, now)
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

// settleUnknown applies a policy to an attempt that nobody knows the outcome
// of; exhausted is the reason when resending is not allowed any more.
func (t Task) settleUnknown(p Policy, exhausted Reason, backoff Backoff, now time.Time) Task {
	switch {
	case p == Hold:
		return t.hold()
	case p == Fail:
		return t.fail(UnknownOutcome, now)
	case t.RetryCount >= t.MaxRetries:
		return t.fail(exhausted, now)
	case t.expired(now):
		return t.fail(Expired, now)
	}
	return t.retry(backoff, now)
}
