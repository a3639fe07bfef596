package tasks

import (
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Submission is one task to create, or one refused request to log. The ID is created before the
// commit, so that the transaction can be run again if its response is lost.
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
	Metadata    []byte    // a JSON object; nil = none
	SendAt      time.Time // zero = at once
	ExpiresAt   time.Time // zero = never, unless TTL is set
	TTL         time.Duration
	Draft       task.Draft

	// Refused is why the request is refused; nil = the request is valid. If the key is known, the request
	// is a replay despite Refused: a request that was accepted stays accepted.
	Refused *task.Error

	RequestID string
	SourceIP  string
	UserAgent string
	Request   []byte // the request body as received; need not be JSON

	tried    bool    // an insert of ID was sent, so the task may exist
	places   *places // shared by the valid rows of a call; nil = none of them is beyond the quota
	hasPlace bool    // this row has taken one of the places
}

// places has the number of new tasks that the quota of a caller admits in one call. Replays need no place.
type places struct {
	left    atomic.Int64
	refusal *task.Error // of tasks that get no place
}

// takePlace takes a place for a new task, and returns the refusal if there is none. A row that is tried again keeps its place.
func (s *Submission) takePlace() *task.Error {
	if s.places == nil || s.hasPlace {
		return nil
	}
	if s.places.left.Add(-1) < 0 {
		return s.places.refusal
	}
	s.hasPlace = true
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

// loggedAgent returns the User-Agent header, which may have any bytes, as a text that can be stored.
func (s *Submission) loggedAgent() string { return task.Cut(store.Storable(s.UserAgent), 500) }

// Submitted is the result of a Submission.
type Submitted struct {
	ID       task.ID
	State    task.State
	Replayed bool // the key was known: ID and Text are those of the first call, State is the present state
	Archived bool // with Replayed: the task is archived
	Text     string
	Unused   []string    // parameters that the template does not use
	Refused  *task.Error // why nothing was stored except the log row; nil = not refused

	err error // of this row alone
}
