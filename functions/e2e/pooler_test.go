package e2e

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// pooledURL returns the URL of a database through PgBouncer.
func pooledURL(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	return sandbox.NewPgBouncer(t).URL(config.Database)
}

func TestContractThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	_, h := cluster.NewEnv(t, pooledURL(t, url), func(c *settings.Config) { c.Pooler = true })
	checkedClient{cluster.ServeHandler(t, h).Connect(url), contract.NewChecker(t)}.runAll()
}

func TestPooledSessionIsResetForTheNextClient(t *testing.T) {
	t.Parallel()
	url := pooledURL(t, sandbox.NewDatabase(t))
	connect := func() *pgx.Conn {
		config, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		config.User, config.Password, config.DefaultQueryExecMode = sandbox.Roles.Hot, sandbox.Roles.HotPassword, pgx.QueryExecModeExec
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	attacker, next := connect(), connect()
	_, err := attacker.Exec(t.Context(), `create temp view callers as select 1`)
	require.ErrorContains(t, err, "permission denied to create temporary tables")
	sessions := map[uint32]bool{}
	for range 3 {
		var pid uint32
		var values string
		require.NoError(t, attacker.QueryRow(t.Context(), `select pg_backend_pid(), concat(set_config('synchronous_commit', 'off', false),
			set_config('search_path', 'pg_temp', false), set_config('default_transaction_read_only', 'on', false))`).Scan(&pid, &values))
		sessions[pid] = true
		require.NoError(t, next.QueryRow(t.Context(), `select pg_backend_pid(), concat_ws(' ', current_setting('synchronous_commit'),
			current_setting('search_path'), current_setting('default_transaction_read_only'))`).Scan(&pid, &values))
		require.Contains(t, sessions, pid, "the session was the attacker's")
		require.Equal(t, "on public, pg_temp off", values)
	}
}

func TestEventsAndMessagesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	c.StartEach("DATABASE_URL="+pooledURL(t, c.DatabaseURL), "SENDONCE_DATABASE_POOLER=true")
	shop := cluster.NewReceiver(t, nil)
	c.AddEndpoint(shop.URL)
	finished := c.FinishTasks(20)
	c.WaitMessage(c.Save("msg.orders.paid", cluster.WithoutConfirm), "sent")
	cluster.WaitAllDelivered(c, 20)
	shop.RequireEachOnce(t, finished)
}
