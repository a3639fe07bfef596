package messages

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
)

// Config has the limits of callers.
type Config struct {
	Waiting     quota.Waiting    // limits of each caller's waiting messages; 0 = no limit
	StreamBytes map[string]int64 // size of each stream; a caller may use only a share of it
	Inbox       int              // capacity of a user's inbox; one sender may use a quarter of it within 15 minutes; 0 = no limit
}

// Store reads and writes reliable messages.
type Store struct {
	db *store.DB

	messages      *store.Coalescer[*Submission, Submitted]
	messageQuotas *quota.Quotas
	shares        streamShares
	inboxes       inboxShares
}

// New returns the store of messages.
func New(db *store.DB, cfg Config) *Store {
	s := &Store{db: db}
	s.messages = store.NewCoalescer(func(m *Submission) int64 { return m.CallerID }, s.flushMessages)
	s.messageQuotas = quota.New(cfg.Waiting, s.countMessages)
	s.shares.query = s.sharesExceeded(cfg.StreamBytes)
	s.inboxes = inboxShares{limit: cfg.Inbox / inboxPart, countSaved: s.sentToUser}
	return s
}
