package admin

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Store reads and writes templates, default contents, blocked words, dead letters and the audit trail.
type Store struct {
	db      *store.DB
	blocked blockedWords
	country task.Country
}

// New returns the store. Phone numbers of the country may be written without the country code.
func New(db *store.DB, country task.Country) *Store { return &Store{db: db, country: country} }
