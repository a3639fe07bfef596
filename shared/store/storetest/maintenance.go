package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/stores"
)

// Maintain runs maintenance now, whenever it ran before.
func (db *DB) Maintain(t *testing.T) {
	t.Helper()
	db.Exec(t, `update upkeep set begun_at = '-infinity' where what = 'maintenance'`)
	for more := true; more; {
		var err error
		_, more, err = db.Maintenance.Run(t.Context())
		require.NoError(t, err)
	}
}

// OpenKeeping is a store that keeps tasks and logs for so many days.
func OpenKeeping(t *testing.T, url string, tasks, logs int) *DB {
	t.Helper()
	return OpenAt(t, url, func(c *stores.Config) { c.Keep = maintenance.Retention{TaskDays: tasks, LogDays: logs} })
}
