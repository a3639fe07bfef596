package sandbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func newConn(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}

func TestProxy(t *testing.T) {
	t.Parallel()

	t.Run("forwards everything by default", func(t *testing.T) {
		t.Parallel()
		conn := newConn(t, NewProxy(t, NewEmptyDatabase(t)).URL())
		batch := &pgx.Batch{}
		for n := range 100 {
			batch.Queue("SELECT repeat('x', $1::int)", n*1000)
		}
		results := conn.SendBatch(t.Context(), batch)
		for n := range 100 {
			var text string
			require.NoError(t, results.QueryRow().Scan(&text))
			require.Len(t, text, n*1000)
		}
		require.NoError(t, results.Close())
	})

	t.Run("Cut closes connections and refuses new ones until Restore", func(t *testing.T) {
		t.Parallel()
		proxy := NewProxy(t, NewEmptyDatabase(t))
		conn := newConn(t, proxy.URL())
		proxy.Cut()
		_, err := conn.Exec(t.Context(), "SELECT 1")
		require.Error(t, err)
		_, err = pgx.Connect(t.Context(), proxy.URL())
		require.Error(t, err)
		proxy.Restore()
		_, err = newConn(t, proxy.URL()).Exec(t.Context(), "SELECT 1")
		require.NoError(t, err)
	})

	t.Run("a stall holds back the messages, and Resume delivers them", func(t *testing.T) {
		t.Parallel()
		proxy := NewProxy(t, NewEmptyDatabase(t))
		conn := newConn(t, proxy.URL())
		proxy.Stall()
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "CREATE TABLE late ()")
			done <- err
		}()
		select {
		case err := <-done:
			require.Fail(t, "the stall let messages through", "%v", err)
		case <-time.After(100 * time.Millisecond):
		}
		proxy.Resume()
		require.NoError(t, <-done)
	})

	t.Run("Cut ends a stall", func(t *testing.T) {
		t.Parallel()
		proxy := NewProxy(t, NewEmptyDatabase(t))
		conn := newConn(t, proxy.URL())
		proxy.Stall()
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "SELECT 1")
			done <- err
		}()
		proxy.Cut()
		require.Error(t, <-done)
	})
}

func TestStatementWithLostResponseIsCommitted(t *testing.T) {
	t.Parallel()
	insert := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "INSERT INTO t VALUES ($1)", 1)
		return err
	}
	for name, c := range map[string]struct {
		lose string
		run  func(ctx context.Context, conn *pgx.Conn) error
	}{
		"a simple query": {"insert into", func(ctx context.Context, conn *pgx.Conn) error {
			return conn.PgConn().Exec(ctx, "INSERT INTO t VALUES (1)").Close()
		}},
		"a prepared statement": {"insert into", insert},
		"the commit of a transaction": {"commit", func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return insert(ctx, tx.Conn()) })
		}},
		"a batch": {"INSERT", func(ctx context.Context, conn *pgx.Conn) error {
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			batch.Queue("INSERT INTO t VALUES (1)")
			batch.Queue("SELECT 2")
			return conn.SendBatch(ctx, batch).Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := NewEmptyDatabase(t)
			direct, proxy := newConn(t, database), NewProxy(t, database)
			_, err := direct.Exec(t.Context(), "CREATE TABLE t (n int)")
			require.NoError(t, err)

			conn := newConn(t, proxy.URL())
			fired := proxy.LoseResponse(Containing(c.lose))
			err = c.run(t.Context(), conn)
			require.Error(t, err)
			var received *pgconn.PgError
			require.False(t, errors.As(err, &received), "the client must not receive a response of the server: %v", err)
			<-fired

			var rows int
			require.NoError(t, direct.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&rows))
			require.Equal(t, 1, rows)
			_, err = newConn(t, proxy.URL()).Exec(t.Context(), "INSERT INTO t VALUES (2)")
			require.NoError(t, err, "only one response is lost")
		})
	}
}

func TestLostResponseClosesOneConnection(t *testing.T) {
	t.Parallel()
	proxy := NewProxy(t, NewEmptyDatabase(t))
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	require.NoError(t, err)
	defer pool.Close()
	other, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer other.Release()

	fired := proxy.LoseResponse(Containing("lose me"))
	_, err = pool.Exec(t.Context(), "SELECT 1 -- lose me")
	require.Error(t, err)
	<-fired
	_, err = other.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
}
