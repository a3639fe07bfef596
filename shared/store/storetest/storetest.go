// Package storetest opens stores on fresh databases, and has helpers for tests.
package storetest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
)

// DB is the stores of one database.
type DB struct {
	*store.DB
	stores.Stores
	owner *pgxpool.Pool
}

// Open opens the stores of a fresh database, logged in as the functions are.
func Open(t *testing.T) *DB {
	t.Helper()
	return OpenAt(t, sandbox.NewDatabase(t))
}

// OpenAt is Open for the database at the URL of its owner.
func OpenAt(t *testing.T, url string, change ...func(*stores.Config)) *DB {
	t.Helper()
	cfg := stores.Config{Config: store.Config{URL: url, Roles: store.Roles(sandbox.Roles)}, StatusOf: func(string) int { return 400 }}
	var err error
	cfg.Keys, err = store.ParseKeys(sandbox.EncryptionKey)
	require.NoError(t, err)
	for _, c := range change {
		c(&cfg)
	}
	db, all, err := stores.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	owner, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(owner.Close)
	return &DB{db, all, owner}
}

// Owner returns a pool of the owner of the database, who may do anything.
func (db *DB) Owner(*testing.T) *pgxpool.Pool { return db.owner }
