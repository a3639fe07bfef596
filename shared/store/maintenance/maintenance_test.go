package maintenance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestMaintenanceRunsOnceAmongAllInstances(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t)
	// runRestores drops a partition of a future month, runs maintenance, and reports whether the run made the partition again.
	runRestores := func(db *storetest.DB) bool {
		partition := `send_logs_` + monthAgo(-3).Format("200601")
		db.Exec(t, `drop table `+partition)
		_, _, err := db.Maintenance.Run(t.Context())
		require.NoError(t, err)
		restored := db.Count(t, `select count(*) from pg_class where relname = $1`, partition) == 1
		if !restored {
			require.NoError(t, db.MakeLogPartitions(t.Context()))
		}
		return restored
	}
	require.True(t, runRestores(db))
	require.False(t, runRestores(db))
	require.False(t, runRestores(other))
	db.Exec(t, `update upkeep set begun_at = begun_at - interval '9 minutes'`)
	require.False(t, runRestores(other))
	db.Exec(t, `update upkeep set begun_at = begun_at - interval '1 minute'`)
	require.True(t, runRestores(other))
}

func TestFailedMaintenanceIsDueAgain(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `alter function make_log_partitions(integer) rename to away`)
	_, _, err := db.Maintenance.Run(t.Context())
	require.ErrorContains(t, err, "maintenance: ")
	_, _, err = db.Maintenance.Run(t.Context())
	require.Error(t, err, "maintenance is due again")
	db.Exec(t, `alter function away(integer) rename to make_log_partitions`)
	for range 2 {
		_, _, err = db.Maintenance.Run(t.Context())
		require.NoError(t, err)
	}
}

func TestTrimIsDueAfterClockSkew(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	due := func() bool {
		_, due, err := db.Messages.BeginTrim(t.Context())
		require.NoError(t, err)
		return due
	}
	db.Exec(t, `update upkeep set begun_at = now() + interval '1 year'`)
	require.True(t, due(), "a clock that was wrong wrote begun_at")
	require.False(t, due())
	db.Exec(t, `update upkeep set begun_at = now() + interval '1 second'`)
	require.False(t, due(), "another run has just begun, by a clock that is a second ahead")
}
