package task

import "time"

// State is where a task is in its life. The numbers are those of task_live.state
// up to Held, and of task_done.status + 2 after it.
type State int16

// The states of a task. Only Pending tasks are claimed.
const (
	Scheduled  State = iota // waits for its send time, or for the time of its next try
	Pending                 // waits for a sender
	Processing              // one sender has it under a lease
	Held                    // outcome unknown; waits for an operator
	Succeeded               // final
	Failed                  // final, with a Reason
)

// String is the state's word on the wire.
func (s State) String() string {
	return [...]string{"scheduled", "pending", "processing", "held", "succeeded", "failed"}[s]
}

// ParseState reads a word of the wire.
func ParseState(word string) (State, bool) {
	for s := Scheduled; s <= Failed; s++ {
		if s.String() == word {
			return s, true
		}
	}
	return 0, false
}

// Status is the seed's number for the state (seed 001 section 3.2):
// 0 PENDING, 1 PROCESSING, 2 SUCCESS, 3 FAILED.
func (s State) Status() int { return [...]int{0, 0, 1, 1, 2, 3}[s] }

// Final tells whether nothing more happens to the task by itself.
func (s State) Final() bool { return s >= Succeeded }

// Reason says why a task failed; NoReason for every other state.
type Reason int16

// The reasons of a failure.
const (
	NoReason         Reason = iota
	Rejected                // the sender said: do not retry
	RetriesExhausted        // the sender asked for one more retry than allowed
	TimedOut                // the last allowed lease ran out
	UnknownOutcome          // nobody knows whether it was sent, and the submitter chose not to resend
	Expired                 // its time passed before it could be sent
	Cancelled               // withdrawn before a sender had it
)

// String is the reason's word on the wire, "" for NoReason.
func (r Reason) String() string {
	return [...]string{"", "rejected", "retries_exhausted", "timeout", "unknown", "expired", "cancelled"}[r]
}

// ParseReason reads a word of the wire; "" is NoReason.
func ParseReason(word string) (Reason, bool) {
	for r := NoReason; r <= Cancelled; r++ {
		if r.String() == word {
			return r, true
		}
	}
	return 0, false
}

// Policy is what the submitter wants done when nobody knows whether the
// message was sent: the delivery semantics of seed 003 as a choice.
type Policy int16

// The policies. Resend is at-least-once and the seed's rule; Fail is
// at-most-once; Hold asks an operator.
const (
	Resend Policy = iota
	Hold
	Fail
)

// String is the policy's word on the wire.
func (p Policy) String() string { return [...]string{"resend", "hold", "fail"}[p] }

// ParsePolicy reads a word of the wire.
func ParsePolicy(word string) (Policy, bool) {
	for p := Resend; p <= Fail; p++ {
		if p.String() == word {
			return p, true
		}
	}
	return 0, false
}

// Ending is how the newest claim of a task ended.
type Ending int16

// The endings. Open is also that of a task never claimed.
const (
	Open            Ending = iota
	EndedFailed            // the sender reported a failure
	EndedUnknown           // the sender could not tell
	EndedReleased          // the sender gave the task back untried
	EndedByTimeout         // the lease ran out
	EndedSucceeded         // the sender reported success
	EndedByOperator        // resolved by hand
)

// Limits of the contract.
const (
	MaxContent      = 200 // characters of a message (seed 001 section 3.1)
	MaxResult       = 500 // characters of a result
	MaxRetriesCap   = 10  // highest max_retries
	MaxQueueBytes   = 63
	DefaultQueue    = "default"
	DefaultPriority = 5
	LowestPriority  = 9
)

// The seed's result texts (seed 001 sections 8.3 and 8.4).
const (
	ResultTimeoutRetry     = "处理超时，自动重试"
	ResultTimeoutExhausted = "处理超时，超过最大重试次数"
	ResultExhaustedPrefix  = "超过最大重试次数: "
	ResultTimeoutUnknown   = "处理超时，结果未知"
	ResultExpired          = "已过期，未发送"
	ResultCancelled        = "已取消"
)

// Task is everything that decides a task's next step: its live row, or its
// result row joined with its body. A zero time means none.
type Task struct {
	ID         ID
	Queue      string
	Priority   int16
	MaxRetries int16
	OnUnknown  Policy
	ExpiresAt  time.Time

	// Who is told of what becomes of it.
	CallerID int64
	Callback bool // it has a URL of its own for that

	State      State
	Reason     Reason
	RetryCount int16
	DueAt      time.Time // send time, end of the lease, or expiry; zero when nothing falls due
	Result     string    // at most MaxResult characters
	ErrorCode  string    // the sender's, or the Verdict or Reason that made the Result
	SentAt     time.Time
	FinishedAt time.Time // when a final state was reached

	// The newest claim. It stays after the claim ended, so that a late report
	// can be told from a stale one.
	ClaimID      int64
	AppID        string
	ClaimedBy    *int64 // the caller that claimed; nil = not known, a process of an older version claimed
	Ended        Ending
	MarksSending bool
	SendingAt    time.Time
}

// ServiceCaller stands for the caller of a claim that a function of the service made
// for itself: no caller has this id.
const ServiceCaller int64 = -1

func (t Task) expired(now time.Time) bool {
	return !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(now)
}

// wait puts the task back in line, at once or after a delay. It falls due when
// the delay ends or when it expires, whichever is first.
func (t Task) wait(now time.Time, after time.Duration) Task {
	t.State, t.Reason, t.DueAt, t.FinishedAt = Pending, NoReason, t.ExpiresAt, time.Time{}
	if due := now.Add(after); after > 0 {
		t.State = Scheduled
		if t.DueAt.IsZero() || due.Before(t.DueAt) {
			t.DueAt = due
		}
	}
	return t
}

// retry puts the task back in line for its next try.
func (t Task) retry(backoff Backoff, now time.Time) Task {
	t.RetryCount++
	return t.wait(now, backoff.wait(t.Queue, t.RetryCount))
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

// Cut shortens a text to at most n characters, never within one.
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
