package events

import "github.com/sendonce/sendonce/shared/store"

// Store publishes the events of the outbox.
type Store struct{ db *store.DB }

// New returns the store of events.
func New(db *store.DB) *Store { return &Store{db: db} }
