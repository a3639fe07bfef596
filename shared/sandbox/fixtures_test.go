package sandbox

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestNewDatabaseIsMigratedAndSeparate(t *testing.T) {
	t.Parallel()
	one, two := newConn(t, NewDatabase(t)), newConn(t, NewDatabase(t))
	_, err := one.Exec(t.Context(), "CREATE TABLE only_here ()")
	require.NoError(t, err)

	var migrated, leaked bool
	require.NoError(t, two.QueryRow(t.Context(), "SELECT to_regclass('tasks') IS NOT NULL, to_regclass('only_here') IS NOT NULL").Scan(&migrated, &leaked))
	require.True(t, migrated)
	require.False(t, leaked)
}

func newConn(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}
