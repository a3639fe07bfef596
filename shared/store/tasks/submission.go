package tasks

import (
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Submission is one task to create, or one refused request to log. The ID is created before the transaction, so that
// a transaction whose response was lost can be run again.
type Submission struct {
	ID          task.ID
	Key         *task.Hash // hash of caller, resource and idempotency key; nil = no key given
	Fingerprint task.Hash  // hash of the decoded request

	CallerID    int64
	Queue       string
	Priority    int16
	MaxRetries  int16
	OnUnknown   task.Policy
	Phone       string // as task.Country normalizes it; "" if a refused request has none
	Source      string
	CallbackURL string
	Metadata    []byte        // a JSON object; nil = none
	SendAt      time.Time     // zero = at once
	ExpiresAt   time.Time     // zero = never, unless TTL is set
	TTL         time.Duration // the task expires so long after its send time; 0 = not set
	Draft       task.Draft

	// Refused is why the request is refused; nil = the request is valid. If the same request was accepted with this key
	// before, it is a replay despite Refused: a request that was accepted stays accepted.
	Refused *task.Error

	RequestID string
	SourceIP  string
	UserAgent string
	Request   []byte // the request body as received; need not be JSON

	tried     bool       // an insert of ID was sent, so the task may exist
	quota     *callQuota // shared by the valid rows of a call; nil = all of them are within the quota
	usesQuota bool       // the row was counted in quota
}

// callQuota has the number of new tasks that the quota of a caller still admits in one call. Replays do not count.
type callQuota struct {
	left    atomic.Int64
	refusal *task.Error // of the tasks beyond the quota
}

// takeQuota counts a new task in its quota, and returns the refusal if none is left. A row that is tried again is not
// counted again.
func (s *Submission) takeQuota() *task.Error {
	if s.quota == nil || s.usesQuota {
		return nil
	}
	if s.quota.left.Add(-1) < 0 {
		return s.quota.refusal
	}
	s.usesQuota = true
	return nil
}

// Expiry returns when the submission expires if it is stored at now; zero = never.
func (s *Submission) Expiry(now time.Time) time.Time {
	switch {
	case s.TTL == 0:
		return s.ExpiresAt
	case s.SendAt.After(now):
		return s.SendAt.Add(s.TTL)
	default:
		return now.Add(s.TTL)
	}
}

// loggedAgent returns the first 500 characters of the User-Agent header. Bytes that Postgres cannot store are replaced.
func (s *Submission) loggedAgent() string { return task.Cut(store.Storable(s.UserAgent), 500) }

// Submitted is the result of a Submission.
type Submitted struct {
	ID       task.ID
	State    task.State
	Replayed bool // an earlier call created the task: ID and Text are from that call, State is the present state
	Archived bool // only if Replayed: the task is archived
	Text     string
	Unused   []string    // parameters that the template does not use
	Refused  *task.Error // why nothing was stored except the log row; nil = not refused

	err error // of this row alone
}
