package tasks

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the configuration of a Store.
type Config struct {
	StatusOf     func(code string) int // the HTTP status of a refusal with this code, for receive_logs.status_code
	Backoff      task.Backoff          // how long retries wait, by queue
	PhoneCountry task.Country          // phone numbers of this country may be written without a country code
	Waiting      int64                 // default limit of an account's tasks that are not final; 0 = no limit
	Hooks        Hooks

	// OnPending is called when work in the background (Store.scan, Store.release) has made about n tasks of a queue
	// pending, or has found pending tasks that claims missed because of their low-water marks. nil = no call.
	OnPending func(queue string, n int)

	// BlockedWords returns a function that reports whether a text contains a blocked word. A submission with such a text is
	// refused.
	BlockedWords func(ctx context.Context) (contains func(text string) bool, err error)
}

// New returns the store of tasks.
func New(db *store.DB, cfg Config) *Store {
	if cfg.OnPending == nil {
		cfg.OnPending = func(string, int) {}
	}
	s := &Store{db: db, hooks: cfg.Hooks, onPending: cfg.OnPending, blockedWords: cfg.BlockedWords, statusOf: cfg.StatusOf, backoff: cfg.Backoff, phones: cfg.PhoneCountry}
	s.submits = store.NewCoalescer(func(s *Submission) int64 { return s.CallerID }, s.flushSubmissions)
	s.reports = store.NewCoalescer(func(r *Report) int64 { return r.CallerID }, s.flushReports)
	s.reports.DivideOnTimeout = true // a lost report could make its task be sent twice
	s.taskQuotas = quota.NewJoint(quota.Waiting{Items: cfg.Waiting}, func(ctx context.Context) (map[int64]quota.Waiting, error) {
		return s.countTasks(ctx, taskSample)
	})
	return s
}
