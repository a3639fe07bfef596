package console

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

func TestPlotDrawsSixHours(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 2, 0, 0, time.UTC)
	p := &page{Visit: &fn.Visit{Request: &http.Request{}}, Language: "en"}
	drawn := p.newPlot(largePlot, at, []api.Throughput{
		{Since: at.Truncate(plotStep), Submitted: 7, Succeeded: 6, Failed: 1},
		{Since: at.Truncate(plotStep), Submitted: 1},          // another queue
		{Since: at.Add(-7 * time.Hour), Submitted: 1_000_000}, // too old
	})
	submitted := strings.Fields(drawn.Lines[0].Points)
	require.Len(t, submitted, plotSteps)
	require.Equal(t, "720.0,8.0", submitted[plotSteps-1], "the highest count is at the top margin")
	require.Equal(t, "44.0,122.0", submitted[0])
	require.Equal(t, []plotMark{{122, "0"}, {65, "4"}, {8, "8"}}, drawn.Rows)
	require.Equal(t, "06:30", drawn.Columns[0].Text)
	require.Contains(t, drawn.Summary, "8 were submitted, 6 succeeded and 1 failed")
	require.NotPanics(t, func() { p.newPlot(smallPlot, at, nil) })
}

func TestRoundUp(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]int64{1: 2, 3: 4, 9: 10, 11: 20, 81: 100, 1001: 2000} {
		require.Equal(t, want, roundUp(n))
	}
}
