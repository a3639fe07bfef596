package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestSettingsOfTheRoleAreNoticed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		setting   string
		submitted bool // although it is not durable
	}{{"synchronous_commit = off", true}, {"search_path = pg_temp", false}, {"default_transaction_read_only = on", false}} {
		t.Run(c.setting, func(t *testing.T) {
			t.Parallel()
			db, neighbour := open(t), open(t)
			require.NoError(t, db.Ping(t.Context()))
			alter := func(change string) { // as the role itself
				_, err := db.hot.Exec(t.Context(), fmt.Sprintf(`begin read write; do $$ begin
					execute format('alter role current_user in database %%I %s', current_database()); end $$; commit`, change))
				require.NoError(t, err)
			}
			alter("set " + c.setting)
			require.ErrorIs(t, db.Ping(t.Context()), ErrRoleSettings)
			_, errs := db.Submit([]*Submission{message()})
			if c.submitted {
				require.NoError(t, errs[0])
			} else {
				require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]), "%v", errs[0])
			}
			require.NoError(t, neighbour.Ping(t.Context()))
			neighbour.mustSubmit(t, message())

			alter("reset all")
			require.ErrorIs(t, db.Ping(t.Context()), ErrRoleSettings, "a session that began before")
			require.NoError(t, db.Ping(t.Context()))
			db.mustSubmit(t, message())
		})
	}
}

func TestSettingsOfASessionAreNoticed(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, sql := range []string{"set synchronous_commit = off", "set search_path = pg_catalog", "set default_transaction_read_only = on"} {
		_, err := db.hot.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
		require.ErrorIs(t, db.Ping(t.Context()), ErrRoleSettings, sql)
		require.NoError(t, db.Ping(t.Context()), "a session that began after")
		db.mustSubmit(t, message())
	}
}

func TestAWrongPasswordIsATemporaryFault(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Roles.HotPassword = "another" })
	_, errs := db.Submit([]*Submission{message()})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "28P01")
	require.Error(t, db.Ping(t.Context()))
}
