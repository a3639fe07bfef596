package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// keepHouse keeps house now, whenever that was done before.
func (db *DB) keepHouse(t *testing.T) {
	t.Helper()
	db.exec(t, `update upkeep set begun_at = '-infinity' where what = 'house'`)
	for more := true; more; {
		var err error
		_, more, err = db.RunMaintenance(t.Context())
		require.NoError(t, err)
	}
}

// keeping is a store that keeps tasks and logs for so many days.
func keeping(t *testing.T, url string, tasks, logs int) *DB {
	t.Helper()
	return openAt(t, url, func(c *Config) { c.Keep = Retention{TaskDays: tasks, LogDays: logs} })
}
