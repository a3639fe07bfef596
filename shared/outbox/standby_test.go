package outbox

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// The test cancels the wait of a business transaction for the standby, so its message is visible although a fail-over
// would undo the transaction.
func TestMessageIsSentOnlyAfterTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("the test changes settings of the server, and DATABASE_URL names a shared one")
	}
	server, err := sandbox.StartPostgres(t.Context(), sandbox.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	open := func(connections int32) *pgxpool.Pool {
		cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
		require.NoError(t, err)
		cfg.MaxConns = connections
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	watch, db, service := open(2), open(1), newFakeService(t) // one connection must be enough for a forwarder
	exec(t, watch, DDL)

	setStandby := func(name string) {
		exec(t, watch, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'")
		exec(t, watch, "SELECT pg_reload_conf()")
	}
	setStandby("not_connected")
	eventually(t, func() bool { // the server has loaded the setting
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := watch.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', '')")
		return err != nil
	})
	const waiting = "pg_stat_activity WHERE wait_event = 'SyncRep'"
	eventually(t, func() bool { return count(t, watch, waiting) == 0 })

	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	_, err = Put(t.Context(), tx, Message{To: "user:anna", Data: "paid"})
	require.NoError(t, err)
	committed := make(chan error, 1)
	go func() { committed <- tx.Commit(t.Context()) }()
	eventually(t, func() bool { return count(t, watch, waiting) == 1 })
	exec(t, watch, "WITH w AS MATERIALIZED (SELECT pid FROM "+waiting+") SELECT pg_cancel_backend(pid) FROM w")
	require.NoError(t, <-committed)

	drained := make(chan int, 1)
	go func() {
		n, _ := service.forwarder(db).Drain(t.Context())
		drained <- n
	}()
	eventually(t, func() bool { return count(t, watch, waiting) == 1 })
	posts, _ := service.counts()
	require.Zero(t, posts, "the standby does not have the message")
	setStandby("")
	require.Equal(t, 1, <-drained)
}
