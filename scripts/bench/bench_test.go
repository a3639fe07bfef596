package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// It may not run beside other tests: it measures a Postgres of its own, whatever
// DATABASE_URL says.
func TestAShortRunLosesNothingAndPrintsATable(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	o := options{duration: 300 * time.Millisecond, connections: []int{1, 8}, messages: 1200}
	s, err := bench(t.Context(), o, &progress)
	require.NoError(t, err, progress.String())
	require.NoError(t, s.wrong())

	names := map[string]int{}
	for _, r := range s.results {
		require.Positive(t, r.rate+r.p50.Seconds(), r.name)
		require.Empty(t, r.failures, r.name)
		names[r.name]++
		require.Contains(t, s.String(), "| "+r.name+" | ")
		require.Contains(t, progress.String(), r.name)
	}
	if s.floor == 0 {
		require.Contains(t, s.String(), "pgbench was not found")
	} else {
		require.Equal(t, 2, names["pgbench, an insert each"])
		delete(names, "pgbench, an insert each")
	}
	require.Equal(t, map[string]int{
		"submit with a key": 2, "submit without a key": 1, "claim 100": 2, "report": 2, "report 100": 2,
		"wake a waiting claim": 1, "save a message": 1, "relay a backlog": 1, "message on its way": 1,
	}, names)
	require.Equal(t, len(s.results)+2, strings.Count(s.String(), "|\n"), "a row each, below a head of two lines")
}

func TestARunThatLostATaskOrACallIsWrong(t *testing.T) {
	t.Parallel()
	good := counts{accepted: 3, tasks: 3, succeeded: 3}
	require.NoError(t, (&summary{counts: good}).wrong())
	for _, c := range []counts{
		{},
		{accepted: 3, tasks: 2, succeeded: 3},
		{accepted: 3, tasks: 4, succeeded: 3},
		{accepted: 3, tasks: 3, succeeded: 2},
		{accepted: 3, tasks: 3, succeeded: 3, live: 1},
	} {
		require.Error(t, (&summary{counts: c}).wrong(), "%+v", c)
	}
	failed := summary{counts: good, results: []result{{name: "report", connections: 64, failures: map[string]int{"503 server_busy": 2}}}}
	require.EqualError(t, failed.wrong(), "calls failed: report, 64 connections: 2 x 503 server_busy")
	require.Contains(t, failed.String(), "Failed: report, 64 connections: 2 x 503 server_busy.")
}
