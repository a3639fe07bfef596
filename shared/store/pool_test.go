package store_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestTextResultsIgnoreDatabaseSettings(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	_, err := storetest.ConnectAsOwner(t, url).Exec(t.Context(), `
do $$ begin
	execute format('alter database %I set bytea_output = escape', current_database());
	execute format('alter database %I set datestyle = German', current_database());
	execute format('alter database %I set extra_float_digits = -10', current_database());
	execute format('alter database %I set client_encoding = LATIN1', current_database());
end $$`)
	require.NoError(t, err)
	ctx, hash := t.Context(), sha256.Sum256([]byte("token"))
	_, err = storetest.OpenAt(t, url).Callers.Add(ctx, "shop", hash[:], callers.Grants{Roles: []string{"submitter"}}, storetest.BuiltIn)
	require.NoError(t, err)
	for _, pooler := range []bool{false, true} {
		db := storetest.OpenAt(t, url, func(c *stores.Config) { c.Pooler = pooler })
		for _, forList := range []bool{false, true} {
			caller, err := db.Callers.ByName(ctx, "shop", forList)
			require.NoError(t, err)
			require.True(t, caller.MatchesToken(hash))
			require.False(t, caller.MatchesToken(sha256.Sum256([]byte("another"))))
		}
		callers, _, err := db.Callers.List(ctx, nil, 0, 10)
		require.NoError(t, err)
		require.Len(t, callers, 1)
		require.WithinDuration(t, time.Now(), callers[0].CreatedAt, time.Minute)
		var third float64
		require.NoError(t, db.Read.QueryRow(ctx, "select 1::float8 / 3").Scan(&third))
		require.Equal(t, 1.0/3, third)
		s := storetest.Submission(func(s *tasks.Submission) { s.Draft = task.Draft{Content: "您的验证码是123456"} })
		db.MustSubmit(t, s)
		require.Equal(t, s.Draft.Content, db.ClaimAs(t, "app", 1)[0].Content)
		require.Equal(t, 1, db.Count(t, `select count(*) from tasks where content like '%123456' and length(content) = 12`))
		db.Exec(t, `delete from tasks`)
	}
}

// The role read has default_transaction_read_only, so every server looks read-only to it. Its connections must accept the primary
// nevertheless.
func TestReadRoleFindsThePrimary(t *testing.T) {
	t.Parallel()
	for _, wanted := range []string{"read-write", "primary", "any"} {
		t.Run(wanted, func(t *testing.T) {
			t.Parallel()
			config, err := pgx.ParseConfig(sandbox.NewDatabase(t))
			require.NoError(t, err)
			url := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s target_session_attrs=%s",
				config.Host, config.Port, config.User, config.Password, config.Database, wanted)
			_, err = storetest.OpenAt(t, url).Tasks.Statistics(t.Context())
			require.NoError(t, err)
		})
	}
}

// A host that loses power does not close its connections, so the client must detect that they are dead.
func TestDeadIdleConnectionsAreDroppedInTime(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	config, err := pgx.ParseConfig(sandbox.NewDatabase(t))
	require.NoError(t, err)
	lost, other := sandbox.NewProxy(t, config.ConnString()), sandbox.NewProxy(t, config.ConnString())
	a, err := pgx.ParseConfig(lost.URL())
	require.NoError(t, err)
	b, err := pgx.ParseConfig(other.URL())
	require.NoError(t, err)
	db := storetest.OpenAt(t, fmt.Sprintf("host=%s,%s port=%d,%d user=%s password='%s' dbname=%s sslmode=disable", a.Host, b.Host, a.Port, b.Port, a.User, a.Password, a.Database))
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _ = db.Hot.Exec(t.Context(), "select pg_sleep(0.2)") })
	}
	all.Wait()
	require.EqualValues(t, 2, db.Hot.Stat().IdleConns())
	<-time.After(1100 * time.Millisecond) // the pool does not ping a connection that was idle for less than 1 s
	lost.Stall()
	defer lost.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	require.NoError(t, db.Ping(ctx))
}
