package storetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
)

// ConnectAs opens a connection as one of the roles that the functions log in as, to the database at url.
func ConnectAs(t *testing.T, url, role string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	cfg.User, cfg.Password = role, sandbox.Password(role)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// ConnectWithSettingsOf opens a connection of the owner with the settings of a role. Its plans are those of the role, also for
// statements that the role may not run.
func ConnectWithSettingsOf(t *testing.T, url, role string) *pgx.Conn {
	t.Helper()
	conn := ConnectAsOwner(t, url)
	_, err := conn.Exec(t.Context(), `select set_config(split_part(s, '=', 1), split_part(s, '=', 2), false)
		from pg_roles, unnest(rolconfig) s where rolname = $1`, role)
	require.NoError(t, err)
	return conn
}

// rowQuerier is a connection, a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CountBlocks runs a statement and returns how many blocks it reads or finds in the buffer cache.
func CountBlocks(t *testing.T, conn rowQuerier, sql string, args ...any) int {
	t.Helper()
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(t, conn.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&plan), sql)
	return plan[0].Plan.Hit + plan[0].Plan.Read
}

// ConnectAsOwner opens a connection as the owner of the database, who may do anything.
func ConnectAsOwner(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Value returns the only column of the first row of a query.
func Value[T any](t *testing.T, db *DB, sql string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, db.Owner.QueryRow(t.Context(), sql, args...).Scan(&value))
	return value
}

// Count returns the number that is the only column of the first row of a query.
func (db *DB) Count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	return Value[int](t, db, sql, args...)
}

// HoldLock runs a statement as the owner in a transaction, which keeps the locks of the statement. release commits the transaction;
// otherwise the end of the test rolls it back.
func (db *DB) HoldLock(t *testing.T, sql string, args ...any) (release func()) {
	t.Helper()
	return HoldLock(t, db.Owner, sql, args...)
}

// HoldLock is DB.HoldLock on a pool, or on a connection that runs nothing else meanwhile.
func HoldLock(t *testing.T, conn interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return func() { require.NoError(t, tx.Commit(t.Context())) }
}

// IsWaiting reports whether a session of the database waits for a lock.
func IsWaiting(t *testing.T, conn rowQuerier) bool {
	var yes bool
	err := conn.QueryRow(t.Context(), `select exists(select from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database())`).Scan(&yes)
	return err == nil && yes
}

// AwaitLockWait waits until a session of the database waits for a lock.
func (db *DB) AwaitLockWait(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return IsWaiting(t, db.Owner) }, time.Minute, time.Millisecond)
}

// Explain returns the plan of a statement with these arguments. The statement setup runs before it, in the same transaction.
func Explain(t *testing.T, pool *pgxpool.Pool, setup, sql string, args ...any) (plan string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), setup); err != nil {
			return err
		}
		lines, err := store.QueryRows(t.Context(), tx, pgx.RowTo[string], "explain "+sql, append([]any{store.Unprepared}, args...)...)
		plan = strings.Join(lines, "\n")
		return err
	}))
	return plan
}

// Exec runs a statement as the owner of the database.
func (db *DB) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := db.Owner.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}
