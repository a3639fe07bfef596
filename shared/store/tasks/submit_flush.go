package tasks

import (
	"errors"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// action is what a flush must still do with a row.
type action int8

const (
	insert  action = iota // insert the row, which is ready
	refuse                // add the refusal to receive_logs
	resolve               // the key or the id exists: find the call that inserted it
)

type submitFlush struct {
	store    *Store
	rows     []*Submission
	alone    bool // rows has one row, which was in a flush that failed (see store.Coalescer)
	actions  []action
	out      []Submitted
	composed []task.Composed
	defaults []*task.DefaultContent // the default content that each row uses; nil = none
	blocked  func(text string) bool
}

// composeEarly composes or refuses a row if no query is needed for that. It reports whether a query is needed. The key
// of a row that is refused or may be beyond the quota must be queried, since the row may be a replay.
func (f *submitFlush) composeEarly(i int, s *Submission) (query bool) {
	switch {
	case s.Refused != nil && s.Key == nil:
		f.refuse(i, s.Refused)
		return false
	case s.Refused != nil, s.quota != nil, s.Draft.NeedsDefault(), s.Draft.UseTemplate:
		return true
	default:
		return !f.compose(i, s.Draft, nil) && s.Key != nil
	}
}

// compose sets the final text of a row and returns true, or refuses the row and returns false.
func (f *submitFlush) compose(i int, draft task.Draft, tmpl *task.StoredTemplate) bool {
	composed, err := draft.Compose(tmpl)
	if err == nil && f.blocked(composed.Text) {
		err = task.Refuse(task.CodeBlocked, "the content contains a blocked word; change the text")
	}
	if err != nil {
		f.refuse(i, err)
		return false
	}
	f.actions[i], f.composed[i] = insert, composed
	f.out[i].Text, f.out[i].Unused, f.out[i].Refused = composed.Text, composed.Unused, nil
	return true
}

func (f *submitFlush) refuse(i int, err error) {
	refusal := &task.Error{Code: task.CodeInvalid, Message: err.Error()}
	errors.As(err, &refusal)
	f.actions[i], f.out[i].Refused = refuse, refusal
}

// lockTimeout returns the lock timeout of a flush with keys. For a flush without keys it returns "": the lock timeout
// of the database role applies.
func (f *submitFlush) lockTimeout() string {
	switch {
	case !slices.ContainsFunc(f.rows, func(s *Submission) bool { return s.Key != nil }):
		return ""
	case f.alone:
		return store.KeyTimeoutAlone
	default:
		return store.KeyTimeout
	}
}
