package maintenance

import (
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/alerts"
)

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
