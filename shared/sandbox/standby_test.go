package sandbox

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPromotedStandbyKeepsAcknowledgedCommits(t *testing.T) {
	t.Parallel()
	pair := NewPair(t)
	conn, err := pgx.Connect(t.Context(), pair.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "create table kept as select 1 as n")
	require.NoError(t, err)
	var state string
	require.NoError(t, conn.QueryRow(t.Context(), "select sync_state from pg_stat_replication").Scan(&state))
	require.Equal(t, "sync", state)

	pair.KillPrimary()
	require.Error(t, conn.Ping(t.Context()))
	_, err = pgx.Connect(t.Context(), pair.URL("postgres"))
	require.ErrorContains(t, err, "read only", "the URL allows only a server that accepts writes, and the standby is not promoted yet")
	pair.Promote()
	conn, err = pgx.Connect(t.Context(), pair.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "insert into kept values (2)")
	require.NoError(t, err)
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "select sum(n) from kept").Scan(&n))
	require.Equal(t, 3, n)
	require.NoError(t, conn.Close(t.Context()))
}
