package maintenance

import (
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/alerts"
)

// Retention is for how many days finished rows stay; 0 = forever.
type Retention struct {
	TaskDays int // of finished tasks, messages and other rows that move to the archive tables
	LogDays  int // of logs and other rows that are deleted
}

// countTime limits the count of one part of a day. If a count takes longer, a smaller part is tried.
const countTime = 2 * time.Second

// Store closes days, archives and deletes old rows, and encrypts secrets again.
type Store struct {
	db        *store.DB
	alerts    *alerts.Store
	keep      Retention
	countTime time.Duration // the constant countTime, but shorter in tests
}

// New returns the store. keep says how long finished rows stay.
func New(db *store.DB, alerts *alerts.Store, keep Retention) *Store {
	return &Store{db: db, alerts: alerts, keep: keep, countTime: countTime}
}
