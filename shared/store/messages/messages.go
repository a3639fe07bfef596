package messages

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
)

// Config has the limits of accounts (a caller with the callers that it created). 0 = no limit.
type Config struct {
	Waiting     quota.Waiting    // limits of an account's waiting messages, unless the caller has limits of its own
	StreamBytes map[string]int64 // size of each stream; an account may use only a share of it
	Inbox       int              // capacity of a user's inbox in messages; one sender may use a quarter of it within 15 minutes
}

// New returns the store of messages.
func New(db *store.DB, cfg Config) *Store {
	s := &Store{db: db}
	s.submissions = store.NewCoalescer(func(m *Submission) int64 { return m.CallerID }, s.flushMessages)
	s.quotas = quota.New(cfg.Waiting, s.countMessages)
	s.shares.query = func(ctx context.Context) (map[usageKey]bool, error) { return s.sharesExceeded(ctx, cfg.StreamBytes) }
	s.inboxes = inboxShares{limit: cfg.Inbox / inboxPart, countSent: s.sentToUser}
	return s
}
