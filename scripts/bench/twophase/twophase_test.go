//go:build slow

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test measures a private Postgres, even if DATABASE_URL is set. It is not parallel, because of Setenv.
func TestShortRun(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	o := options{rounds: 1, duration: 30 * time.Millisecond, connections: []int{1, 8}, stall: 200 * time.Millisecond, backlog: 1000, shards: 2, batch: 50}
	report, err := run(t.Context(), o, &progress)
	require.NoError(t, err, progress.String())
	for _, name := range []string{"saved | 1", "accepted | 1", "saved | 8", "accepted | 8", "accepted, through a proxy | 8", "accepted, database stalled | 8", "save a backlog | 2", "save and relay a backlog | 2"} {
		require.Contains(t, report, "| "+name+" | ")
	}
	require.Equal(t, 8+2, strings.Count(report, "|\n"), "8 rows and two header lines")
	require.Contains(t, report, "Checked: ")
}
