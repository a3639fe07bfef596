package maintenance

import (
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/alerts"
)

// Retention is after how many days old rows are archived; 0 = never.
type Retention struct {
	TaskDays int // for tasks, messages and other rows that move to the archive tables
	LogDays  int // for logs and other rows that are deleted
}

// countTime limits the count of one part of a day. If a count takes longer, a shorter part is tried. The shortest part
// may take tasks.LongestCount.
const countTime = 2 * time.Second

// Store closes days, archives and deletes old rows, and encrypts secrets again.
type Store struct {
	db        *store.DB
	alerts    *alerts.Store
	keep      Retention
	countTime time.Duration // the constant countTime, but shorter in tests
}

// New returns the store.
func New(db *store.DB, alerts *alerts.Store, keep Retention) *Store {
	return &Store{db: db, alerts: alerts, keep: keep, countTime: countTime}
}
