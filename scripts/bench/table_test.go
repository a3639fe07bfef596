package bench

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	t.Parallel()
	table := &Table{Progress: io.Discard}
	require.EqualError(t, table.Err(), "nothing was measured")
	for i := range 3 {
		r := Result{Name: "report", Connections: 64, Rate: float64(100 * (i + 1)), Took: []time.Duration{time.Duration(i+1) * time.Millisecond}}
		r.Compare("pgbench", 50)
		r.Compare("River", 20)
		table.Add(r)
	}
	table.Add(Result{Name: "wake", Connections: 1, Took: []time.Duration{2 * time.Millisecond, 3 * time.Millisecond}})
	require.NoError(t, table.Err())
	require.Contains(t, table.String(), `
| report | 64 | 200 | 2.0 | 2.0 | 2.0 | 2.0 | - | pgbench | 50 | 4.00 (2.00 to 6.00) |
| | | | | | | | | River | 20 | 10.00 (5.00 to 15.00) |
| wake | 1 | - | 2.0 | 2.0 | 2.0 | 2.0 | - | - | - | - |
`)

	table.Add(Result{Name: "report", Connections: 64, Rate: 1, Failures: map[string]int{"503 server_busy": 2}})
	require.EqualError(t, table.Err(), "report, 64 connections: 2 x 503 server_busy")
}

func TestJSONHasEachRound(t *testing.T) {
	t.Parallel()
	text, err := newTable().JSON(&Machine{})
	require.NoError(t, err)
	var got struct {
		Results []struct {
			Round   int
			Name    string
			Rate    float64            `json:"rows_per_second"`
			Latency map[string]float64 `json:"latency_ms"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Len(t, got.Results, 3*2+1)
	require.Equal(t, 2, got.Results[1].Round)
	require.EqualValues(t, 1000, got.Results[1].Rate)
	require.InDelta(t, 50, got.Results[1].Latency["50"], 0.1)
	require.InDelta(t, 99.9, got.Results[1].Latency["99.9"], 0.1)
}
