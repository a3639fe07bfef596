package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/stores"
)

// Maintain runs maintenance to its end, even if it ran a moment ago.
func (db *DB) Maintain(t *testing.T) {
	t.Helper()
	db.Exec(t, `update upkeep set begun_at = '-infinity' where what = 'maintenance'`)
	for more := true; more; {
		var err error
		_, more, err = db.Maintenance.Run(t.Context())
		require.NoError(t, err)
	}
}

// RetentionDays sets the Retention: tasks is its TaskDays, logs its LogDays.
func RetentionDays(tasks, logs int) func(*stores.Config) {
	return func(c *stores.Config) { c.Keep = maintenance.Retention{TaskDays: tasks, LogDays: logs} }
}

// MustArchive runs the archive and returns how many rows it removed from each table; a table without removed rows is left out.
func (db *DB) MustArchive(t *testing.T, run maintenance.ArchiveRun) map[string]int {
	t.Helper()
	rows := map[string]int{}
	for step, err := range db.Maintenance.Archive(t.Context(), run) {
		require.NoError(t, err)
		require.Empty(t, step.Failed)
		if step.Rows > 0 {
			rows[step.Table] += step.Rows
		}
	}
	return rows
}
