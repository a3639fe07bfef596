package task

import "time"

// State is the state of a task. Up to Held, the numbers are those of task_live.state. Succeeded and Failed are
// task_done.status + 2.
type State int16

// Only Pending tasks can be claimed.
const (
	Scheduled  State = iota // waits for its send time, or for the end of the delay before its next try
	Pending                 // waits for a sender
	Processing              // claimed by a sender under a lease
	Held                    // outcome unknown; waits for an operator
	Succeeded               // final
	Failed                  // final, with a Reason
)

// String returns the state's name on the wire.
func (s State) String() string {
	return [...]string{"scheduled", "pending", "processing", "held", "succeeded", "failed"}[s]
}

// ParseState parses a name on the wire.
func ParseState(name string) (State, bool) { return parseName(name, Failed) }

// parseName returns the number from 0 to last that has this name.
func parseName[T interface {
	~int16
	String() string
}](name string, last T) (T, bool) {
	for n := T(0); n <= last; n++ {
		if n.String() == name {
			return n, true
		}
	}
	return 0, false
}

// Status returns the number of the original SMS API: 0 PENDING, 1 PROCESSING, 2 SUCCESS, 3 FAILED.
func (s State) Status() int { return [...]int{0, 0, 1, 1, 2, 3}[s] }

// Final reports whether the task has ended: only a late success or an operator can change it now.
func (s State) Final() bool { return s >= Succeeded }

// Reason is why a task failed; NoReason in every other state.
type Reason int16

const (
	NoReason         Reason = iota
	Rejected                // the sender reported that a retry would not help
	RetriesExhausted        // the sender reported that a retry may help, but none was left
	TimedOut                // the lease expired, and no retry was left
	UnknownOutcome          // unknown whether the message was sent; it is not sent again
	Expired                 // ExpiresAt passed before the task was claimed, or before it could be retried
	Cancelled               // withdrawn while it was scheduled or pending
)

// String returns the reason's name on the wire, "" for NoReason and for a number that is no reason.
func (r Reason) String() string {
	return nameAt(int(r), "", "rejected", "retries_exhausted", "timeout", "unknown", "expired", "cancelled")
}

// nameAt returns the name of a number, or "" for an unknown number, which a damaged row of the database may have.
func nameAt(i int, names ...string) string {
	if i < 0 || i >= len(names) {
		return ""
	}
	return names[i]
}

// ParseReason parses a name on the wire; "" is NoReason.
func ParseReason(name string) (Reason, bool) { return parseName(name, Cancelled) }

// Policy is what happens when it is unknown whether the message was sent.
type Policy int16

const (
	Resend Policy = iota // at-least-once, as in the original SMS API
	Hold                 // an operator decides
	Fail                 // at-most-once
)

// String returns the policy's name on the wire, "" for a number that is no policy.
func (p Policy) String() string { return nameAt(int(p), "resend", "hold", "fail") }

// ParsePolicy parses a name on the wire.
func ParsePolicy(name string) (Policy, bool) { return parseName(name, Fail) }

// Ending is how the newest claim of a task ended. A late success, or the resolution of a held task, replaces it.
type Ending int16

const (
	Open            Ending = iota // not ended, or never claimed
	EndedFailed                   // reported as failed
	EndedUnknown                  // reported as unknown
	EndedReleased                 // returned without a try
	EndedByTimeout                // the lease expired
	EndedSucceeded                // reported as sent
	EndedByOperator               // the held task was resolved
)

// The results that the service itself writes. The first three are those of the original SMS API.
const (
	ResultTimeoutRetry     = "处理超时，自动重试"
	ResultTimeoutExhausted = "处理超时，超过最大重试次数"
	ResultExhaustedPrefix  = "超过最大重试次数: "
	ResultTimeoutUnknown   = "处理超时，结果未知"
	ResultExpired          = "已过期"
	ResultCancelled        = "已取消"
)

// Task has everything on which the next state of a task depends. A zero time means none.
type Task struct {
	ID         ID
	Queue      string
	Priority   int16
	MaxRetries int16
	OnUnknown  Policy
	ExpiresAt  time.Time
	NotBefore  time.Time // the submitter's send time, for Retry; the store reads it only for final tasks

	CallerID int64 // the submitter, whose endpoints receive the task's events
	Callback bool  // the task has a callback URL of its own for its events

	State      State
	Reason     Reason
	RetryCount int16
	DueAt      time.Time // send time, time of the next try, end of the lease, or expiry; zero if none
	FinishedAt time.Time // when a final state was reached
	Attempt

	// The newest claim. It is kept after it ended, to distinguish late reports from stale ones.
	ClaimID      int64
	AppID        string
	ClaimedBy    *int64 // the caller that claimed; nil = never claimed, or not known
	Ended        Ending
	MarksSending bool      // the app promised to mark the task before it sends the message
	SendingAt    time.Time // when the app first marked the task
}

// Attempt is the result of the last attempt to send the message, or of a later decision such as a cancellation.
// The end of a claim replaces all of it, so that no field of an earlier attempt remains.
type Attempt struct {
	Result    string // at most MaxResult characters
	ErrorCode string // the sender's, or a Verdict or Reason that the service wrote
	SentAt    time.Time
}

// ServiceCaller is the caller id in claims and reports of the service's own functions. No caller has this id.
const ServiceCaller int64 = -1

func (t Task) expired(now time.Time) bool {
	return !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(now)
}

// wait makes the task pending, and due at its expiry. With a delay, it makes the task scheduled, and due at the end of
// the delay or at its expiry, whichever is first.
func (t Task) wait(now time.Time, delay time.Duration) Task {
	t.State, t.Reason, t.DueAt, t.FinishedAt = Pending, NoReason, t.ExpiresAt, time.Time{}
	if due := now.Add(delay); delay > 0 {
		t.State = Scheduled
		if t.DueAt.IsZero() || due.Before(t.DueAt) {
			t.DueAt = due
		}
	}
	return t
}

// retry counts a retry and makes the task wait for it.
func (t Task) retry(backoff Backoff, now time.Time) Task {
	t.RetryCount++
	return t.wait(now, backoff.delay(t.Queue, t.RetryCount))
}

func (t Task) succeed(now time.Time) Task {
	t.State, t.Reason, t.DueAt, t.FinishedAt = Succeeded, NoReason, time.Time{}, now
	return t
}

func (t Task) fail(reason Reason, now time.Time) Task {
	t.State, t.Reason, t.DueAt, t.FinishedAt = Failed, reason, time.Time{}, now
	return t
}

func (t Task) hold() Task {
	t.State, t.DueAt = Held, time.Time{}
	return t
}

// Cut shortens a text to at most n characters.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	count := 0
	for i := range text {
		if count == n {
			return text[:i]
		}
		count++
	}
	return text
}
