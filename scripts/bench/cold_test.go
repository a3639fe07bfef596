package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// It may not run beside other tests, as the short run of tasks. How long a start
// takes while everything is tested says nothing.
func TestAShortColdRunStartsFunctionsAloneAndPrintsATable(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	s, err := benchCold(t.Context(), options{cold: true, runs: 2, functions: []string{"report", "sweep"}}, &progress)
	require.NoError(t, err, progress.String())
	require.Len(t, s.rows, 2)
	require.Greater(t, s.binary, int64(1_000_000))
	for i, function := range []string{"report", "sweep"} {
		r := s.rows[i]
		require.Equal(t, function, r.function)
		require.Len(t, r.took, 2)
		require.Positive(t, r.took[0])
		require.Len(t, r.floor, 2)
		require.Greater(t, r.resident, int64(1_000_000))
		require.Contains(t, s.String(), "| "+function+" | ")
	}
}

func TestAColdRunAboveALimitIsWrong(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	good := coldRow{function: "submit", took: []time.Duration{9 * ms, 14 * ms, 16 * ms, 90 * ms}, floor: []time.Duration{5 * ms, 7 * ms}, pooled: []time.Duration{8 * ms}, resident: 25_000_000}
	s := &coldSummary{runs: 4}
	require.EqualError(t, s.wrong(), "no function was measured")
	s.rows = []coldRow{good}
	require.NoError(t, s.wrong())
	require.Contains(t, s.String(), "| submit | 15.0 | 90.0 | 6.0 | 2.50 | 8.0 | 25.0 |")
	require.Contains(t, s.String(), "\nEvery median is at most 15 ms and every memory at most 25 MB.\n")

	s.rows = append(s.rows, coldRow{function: "relay", took: []time.Duration{ms, 16 * ms, 17 * ms}, floor: []time.Duration{ms}, resident: 25_100_000})
	require.EqualError(t, s.wrong(), "above 15 ms or 25 MB: relay takes 16.0 ms; relay keeps 25.1 MB")
	require.Contains(t, s.String(), "| relay | 16.0 | 17.0 | 1.0 | 16.00 | - | 25.1 |")
	require.Contains(t, s.String(), "\nNOT every median")
}
