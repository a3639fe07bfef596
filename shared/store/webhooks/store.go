package webhooks

import "github.com/sendonce/sendonce/shared/store"

// Store reads and writes endpoints and their deliveries.
type Store struct{ db *store.DB }

// New returns the store of webhooks.
func New(db *store.DB) *Store { return &Store{db: db} }
