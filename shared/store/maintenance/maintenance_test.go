package maintenance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestMaintenanceRunsOnceAmongAllInstances(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t)
	// partitionsMade drops a partition, runs maintenance, and returns 1 if the run made the partition again, else 0.
	partitionsMade := func(db *storetest.DB) int {
		partition := `send_logs_` + monthAgo(-3).Format("200601")
		db.Exec(t, `drop table `+partition)
		_, _, err := db.Maintenance.Run(t.Context())
		require.NoError(t, err)
		partitions := db.Count(t, `select count(*) from pg_class where relname = $1`, partition)
		if partitions == 0 {
			require.NoError(t, db.MakeLogPartitions(t.Context()))
		}
		return partitions
	}
	require.Equal(t, 1, partitionsMade(db))
	require.Zero(t, partitionsMade(db))
	require.Zero(t, partitionsMade(other))
	db.Exec(t, `update upkeep set begun_at = begun_at - interval '9 minutes'`)
	require.Zero(t, partitionsMade(other))
	db.Exec(t, `update upkeep set begun_at = begun_at - interval '1 minute'`)
	require.Equal(t, 1, partitionsMade(other))
}

func TestMaintenanceRetriesFailedSteps(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `alter function make_log_partitions(integer) rename to away`)
	_, _, err := db.Maintenance.Run(t.Context())
	require.ErrorContains(t, err, "maintenance: ")
	_, _, err = db.Maintenance.Run(t.Context())
	require.Error(t, err, "the failed step is due again")
	db.Exec(t, `alter function away(integer) rename to make_log_partitions`)
	for range 2 {
		_, _, err = db.Maintenance.Run(t.Context())
		require.NoError(t, err)
	}
}

func TestMaintenanceRunsAfterClockSkew(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	due := func() bool {
		_, due, err := db.Messages.BeginTrim(t.Context())
		require.NoError(t, err)
		return due
	}
	db.Exec(t, `update upkeep set begun_at = now() + interval '1 year'`)
	require.True(t, due(), "begun_at is of a clock that was wrong")
	require.False(t, due())
	db.Exec(t, `update upkeep set begun_at = now() + interval '1 second'`)
	require.False(t, due(), "another run has just begun")
}
