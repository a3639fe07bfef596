package bench

import (
	"encoding/xml"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTable() *Table {
	table := &Table{Progress: io.Discard}
	for round := range 3 {
		for _, connections := range []int{1, 64} {
			r := Result{Name: "submit", Connections: connections, Rate: 1000, Series: slices.Repeat([]int{100}, 10*(round+1))}
			for i := range 1000 {
				r.Took = append(r.Took, time.Duration(i+1)*100*time.Microsecond)
			}
			table.Add(r)
		}
	}
	table.Add(Result{Name: "wake", Connections: 1, Took: []time.Duration{time.Millisecond}})
	return table
}

func TestSVG(t *testing.T) {
	t.Parallel()
	for _, plot := range []string{newTable().SVG("submit", "wake", "unknown"), newTable().SVG("wake"), newTable().SVG()} {
		require.NoError(t, xml.Unmarshal([]byte(plot), new(struct{})))
		require.NotContains(t, plot, "NaN")
		require.NotContains(t, plot, "Inf")
	}
	table := &Table{Progress: io.Discard}
	table.Add(Result{Name: "wake", Connections: 1, Took: []time.Duration{2300 * time.Microsecond}})
	require.NotContains(t, table.SVG("wake"), "NaN", "a plot of a single duration")
	plot := newTable().SVG("submit")
	require.Equal(t, 3+1, strings.Count(plot, "<polyline"), "one line for the rate of each round, and one for the latency")
	require.Contains(t, plot, "submit (64)")
	require.NotContains(t, plot, "submit (1)")
}

func TestLongRunIsPlottedWithFewPoints(t *testing.T) {
	t.Parallel()
	p := ratePanel([][]Result{{{Name: "whole life", Series: slices.Repeat([]int{1200}, 3000)}}}) // five minutes
	require.LessOrEqual(t, len(p.lines[0].parts[0]), maxPoints)
	for _, at := range p.lines[0].parts[0] {
		require.InDelta(t, 12_000, at.y, 0.001)
	}
	require.InDelta(t, 300, p.x.max, 0.001)
}
