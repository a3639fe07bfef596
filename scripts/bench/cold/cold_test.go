package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// The test measures a private Postgres, even if DATABASE_URL is set. It is not parallel, because of Setenv.
// It does not check the durations, since tests of other packages run at the same time.
func TestShortRun(t *testing.T) {
	sandbox.Slow(t)
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	rows, report, err := run(t.Context(), 2, []string{"report", "sweep"}, &progress)
	require.NoError(t, err, progress.String())
	require.Len(t, rows, 2)
	for i, function := range []string{"report", "sweep"} {
		r := rows[i]
		require.Equal(t, function, r.function)
		require.Len(t, r.took, 2)
		require.Positive(t, r.took[0])
		require.Len(t, r.baseline, 2)
		require.Greater(t, r.resident, int64(1_000_000))
		require.Contains(t, report, "| "+function+" | ")
	}
}

func TestEachFunctionHasAFirstCall(t *testing.T) {
	t.Parallel()
	c := coldStarts{tasks: make([]api.ClaimedTask, 1)}
	for _, f := range functions.Catalogue() {
		_, err := c.firstCall(f.Name, 0)
		require.NoError(t, err, f.Name)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	times := func(ms ...time.Duration) []time.Duration {
		for i := range ms {
			ms[i] *= time.Millisecond
		}
		return ms
	}
	require.EqualError(t, check(nil), "no function was measured")
	good := row{function: "submit", took: times(15, 90, 10), baseline: times(6, 6, 5), pooled: times(8), resident: 25_000_000}
	require.NoError(t, check([]row{good}))
	require.Equal(t, "| submit | 15.0 | 90.0 | 6.0 | 2.50 (2.00 to 15.00) | 8.0 | 25.0 |", good.String())
	bad := row{function: "relay", took: times(16), baseline: times(1), resident: 25_100_000}
	require.EqualError(t, check([]row{good, bad}), "relay takes 16.00 times its baseline, more than 2.5\nrelay keeps 25.1 MB, more than 25")
	require.Equal(t, "| relay | 16.0 | 16.0 | 1.0 | 16.00 (16.00 to 16.00) | - | 25.1 |", bad.String())
}
