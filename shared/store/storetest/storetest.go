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

// DB has the stores of one database.
type DB struct {
	*store.DB
	stores.Stores
	Owner *pgxpool.Pool // logged in as the owner of the database, who may do anything
}

// Open opens the stores of a fresh database, with the roles that the functions log in as; change edits the configuration.
func Open(t *testing.T, change ...func(*stores.Config)) *DB {
	t.Helper()
	return OpenAt(t, sandbox.NewDatabase(t), change...)
}

// OpenAt is Open for an existing database; url logs in as its owner.
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

// OpenTwo opens the stores of one fresh database twice, as two processes do.
func OpenTwo(t *testing.T, change ...func(*stores.Config)) (one, other *DB) {
	t.Helper()
	url := sandbox.NewDatabase(t)
	return OpenAt(t, url, change...), OpenAt(t, url, change...)
}

// WithAndWithoutPooler runs a test twice: with the setting for a database behind PgBouncer, and without it. There is no PgBouncer.
func WithAndWithoutPooler(t *testing.T, test func(t *testing.T, db *DB), change ...func(*stores.Config)) {
	for name, pooler := range map[string]bool{"without a pooler": false, "with the setting for a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, Open(t, append(change, func(c *stores.Config) { c.Pooler = pooler })...))
		})
	}
}

// Pages reads a list page by page. It returns all elements and the number of pages. read returns the page after a cursor, or the
// first page if the cursor is zero; cursor returns the cursor of an element.
func Pages[T, Cursor any](
	t *testing.T, read func(after Cursor) (page []T, more bool, err error), cursor func(T) Cursor,
) (all []T, pages int) {
	t.Helper()
	var after Cursor
	for more := true; more; pages++ {
		var page []T
		var err error
		page, more, err = read(after)
		require.NoError(t, err)
		if all = append(all, page...); more {
			after = cursor(page[len(page)-1])
		}
	}
	return all, pages
}
