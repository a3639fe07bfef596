package overview

import (
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// Store reads the overview and updates its counters.
type Store struct {
	db        *store.DB
	countTime time.Duration // the constant countTime, but shorter in tests
	maxPart   atomic.Int64  // the greatest length of the next part that Count tries, a time.Duration; 0 = all the uncounted time
}

// countTime is the timeout of counting one part, except the shortest; after a timeout, a shorter part is tried.
const countTime = 2 * time.Second

// New returns the store of the overview.
func New(db *store.DB) *Store { return &Store{db: db, countTime: countTime} }
