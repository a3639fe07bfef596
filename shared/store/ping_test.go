package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestPingDetectsSettingsOfTheRole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		setting string
		accepts bool // a submission succeeds, although it is not durable
	}{{"synchronous_commit = off", true}, {"search_path = pg_temp", false}, {"default_transaction_read_only = on", false}} {
		t.Run(c.setting, func(t *testing.T) {
			t.Parallel()
			db, neighbour := storetest.Open(t), storetest.Open(t)
			require.NoError(t, db.Ping(t.Context()))
			alter := func(change string) { // as the role itself
				_, err := db.Hot.Exec(t.Context(), fmt.Sprintf(`begin read write; do $$ begin
					execute format('alter role current_user in database %%I %s', current_database()); end $$; commit`, change))
				require.NoError(t, err)
			}
			alter("set " + c.setting)
			require.ErrorIs(t, db.Ping(t.Context()), store.ErrRoleSettings)
			_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
			if c.accepts {
				require.NoError(t, errs[0])
			} else {
				require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]), "%v", errs[0])
			}
			require.NoError(t, neighbour.Ping(t.Context()))
			neighbour.MustSubmit(t, storetest.Submission())

			alter("reset all")
			require.ErrorIs(t, db.Ping(t.Context()), store.ErrRoleSettings, "a session that began before the reset")
			require.NoError(t, db.Ping(t.Context()), "the failed Ping closed that session")
			db.MustSubmit(t, storetest.Submission())
		})
	}
}

func TestPingDetectsSettingsOfASession(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for _, sql := range []string{"set synchronous_commit = off", "set search_path = pg_catalog", "set default_transaction_read_only = on"} {
		_, err := db.Hot.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
		require.ErrorIs(t, db.Ping(t.Context()), store.ErrRoleSettings, sql)
		require.NoError(t, db.Ping(t.Context()), "the failed Ping closed that session")
		db.MustSubmit(t, storetest.Submission())
	}
}

func TestPingDetectsReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	alter := func(change string) {
		db.Exec(t, fmt.Sprintf(`begin read write; do $$ begin execute format('alter database %%I %s', current_database()); end $$; commit`, change))
	}
	alter("set default_transaction_read_only = on")
	db.Hot.Reset()
	require.ErrorIs(t, db.Ping(t.Context()), store.ErrReadOnly)
	alter("reset default_transaction_read_only")
	require.NoError(t, db.Ping(t.Context()), "the failed Ping closed the session")
	db.MustSubmit(t, storetest.Submission())
}

func TestWrongPasswordIsServerBusy(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.Roles.HotPassword = "another" })
	_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "28P01")
	require.Error(t, db.Ping(t.Context()))
}
