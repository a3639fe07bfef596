package store

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestWhatIsReadAsTextDoesNotDependOnTheDatabasesSettings(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	_, err := owner(t, url).Exec(t.Context(), `
do $$ begin
	execute format('alter database %I set bytea_output = escape', current_database());
	execute format('alter database %I set datestyle = German', current_database());
	execute format('alter database %I set extra_float_digits = -10', current_database());
end $$`)
	require.NoError(t, err)
	ctx, hash := t.Context(), sha256.Sum256([]byte("token"))
	_, err = openAt(t, url).AddCaller(ctx, "shop", hash[:], Grants{Roles: []string{"submitter"}}, builtIn)
	require.NoError(t, err)
	for _, pooler := range []bool{false, true} {
		db := openAt(t, url, func(c *Config) { c.Pooler = pooler })
		for _, list := range []bool{false, true} {
			caller, err := db.CallerByName(ctx, "shop", list)
			require.NoError(t, err)
			require.True(t, caller.Knows(hash))
			require.False(t, caller.Knows(sha256.Sum256([]byte("another"))))
		}
		callers, _, err := db.Callers(ctx, nil, 0, 10)
		require.NoError(t, err)
		require.Len(t, callers, 1)
		require.WithinDuration(t, time.Now(), callers[0].CreatedAt, time.Minute)
		var third float64
		require.NoError(t, db.read.QueryRow(ctx, "select 1::float8 / 3").Scan(&third))
		require.Equal(t, 1.0/3, third)
	}
}
