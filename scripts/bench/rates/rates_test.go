//go:build slow

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/scripts/bench"
)

// The test measures a private Postgres, even if DATABASE_URL is set. It is not parallel, because of Setenv.
func TestShortRun(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	o := options{rounds: 1, duration: 30 * time.Millisecond, life: 30 * time.Millisecond, connections: []int{1, 8}, messages: 1200}
	o.json, o.svg = filepath.Join(t.TempDir(), "rounds.json"), filepath.Join(t.TempDir(), "plot.svg")
	report, err := run(t.Context(), o, &progress)
	require.NoError(t, err, progress.String())
	for _, name := range []string{"submit with a key | 1", "submit with a key | 8", "submit without a key | 8", "submit 500 with keys | 4",
		"claim 100 | 4", "report | 64",
		"report 100 | 4", "claim 100 and report 100 | 4", "submit at fixed times | 8", "whole life | 8",
		"wake a waiting claim | 1000", "save a message | 64", "relay a backlog | 1", "send a message | 1"} {
		require.Contains(t, report, "| "+name+" | ")
	}
	var rounds struct{ Results []bench.Result }
	text, err := os.ReadFile(o.json)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &rounds))
	require.Len(t, rounds.Results, 14)
	require.FileExists(t, o.svg)
	if strings.Contains(report, "River could not be downloaded") {
		t.Skip(progress.String())
	}
	for _, name := range []string{"River, insert", "River, insert 500", "River, work"} {
		require.Regexp(t, `\| `+name+` \| \d+ \| \d`, report)
	}
	require.Equal(t, 14+1+2, strings.Count(report, "|\n"), "14 rows, a line for the second baseline of one row, and two header lines")
	require.Equal(t, 4, strings.Count(report, "Checked: "))
}
