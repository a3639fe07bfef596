package overview

import "github.com/sendonce/sendonce/shared/store"

// Store reads the overview and updates its counters.
type Store struct{ db *store.DB }

// New returns the store of the overview.
func New(db *store.DB) *Store { return &Store{db} }
