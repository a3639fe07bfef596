package callers

import (
	"crypto/rand"

	"github.com/sendonce/sendonce/shared/store"
)

// Store reads and writes callers.
type Store struct {
	db              *store.DB
	salt            []byte // salts the token hashes that this process compares
	operatorCallers int    // how many callers the account of a limited operator may have
}

// New returns the store of callers.
func New(db *store.DB, operatorCallers int) *Store {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	return &Store{db: db, salt: salt, operatorCallers: operatorCallers}
}
