package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	plotStep  = 5 * time.Minute
	plotSteps = 72 // six hours
)

// plotSize is the size of a plot and of its margins for labels, in the units of its viewBox. Browsers scale a plot to the
// available width.
type plotSize struct{ Width, Height, Left, Top, Bottom float64 }

var (
	largePlot = plotSize{Width: 720, Height: 140, Left: 44, Top: 8, Bottom: 18}
	smallPlot = plotSize{Width: 120, Height: 24, Top: 2, Bottom: 2} // in a row of a table
)

// plot is the data of the templates plot and small plot: the throughput of the last six hours.
type plot struct {
	plotSize
	Lines   []plotLine
	Rows    []plotMark // horizontal lines with a number
	Columns []plotMark // times
	Summary string     // for screen readers
}

type plotLine struct{ Class, Name, Points string }

type plotMark struct {
	At   float64 // y of a row, x of a column
	Text string
}

// newPlot returns the plot of the throughput in the six hours before at, with texts in the visitor's language.
func (p *page) newPlot(size plotSize, at time.Time, throughput []api.Throughput) plot {
	end := at.UTC().Truncate(plotStep)
	var counts [3][plotSteps]int64 // submitted, succeeded, failed
	var sums [3]int64
	highestCount := int64(1)
	for _, t := range throughput {
		step := plotSteps - 1 - int(end.Sub(t.Since.UTC().Truncate(plotStep))/plotStep)
		if step < 0 || step >= plotSteps {
			continue
		}
		for i, n := range []int64{t.Submitted, t.Succeeded, t.Failed} {
			counts[i][step] += n
			sums[i] += n
			highestCount = max(highestCount, counts[i][step])
		}
	}
	scaleMax := roundUp(highestCount)
	x := func(step float64) float64 { return size.Left + step/(plotSteps-1)*(size.Width-size.Left) }
	y := func(n int64) float64 {
		return size.Top + (1-float64(n)/float64(scaleMax))*(size.Height-size.Top-size.Bottom)
	}
	drawn := plot{plotSize: size}
	names := []string{p.T("submitted"), p.T("succeeded"), p.T("failed")}
	for i, class := range []string{"submitted", "succeeded", "failed"} {
		var points strings.Builder
		for step, n := range counts[i] {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(float64(step)), y(n))
		}
		drawn.Lines = append(drawn.Lines, plotLine{class, names[i], points.String()})
	}
	for _, n := range []int64{0, scaleMax / 2, scaleMax} {
		drawn.Rows = append(drawn.Rows, plotMark{y(n), number(n)})
	}
	const stepsPerHour = float64(time.Hour / plotStep)
	for hour := 6; hour >= 1; hour-- { // a label in the middle of each hour
		step := plotSteps - 1 - (float64(hour)-0.5)*stepsPerHour
		when := end.Add(-time.Duration(hour)*time.Hour + 30*time.Minute)
		drawn.Columns = append(drawn.Columns, plotMark{x(step), when.Format("15:04")})
	}
	drawn.Summary = p.T("In the last six hours %s were submitted, %s succeeded and %s failed. The times are UTC, one point is five minutes.", number(sums[0]), number(sums[1]), number(sums[2]))
	return drawn
}

// roundUp returns the smallest number ≥ n that is 2, 4, 6, 8 or 10 times a power of ten. So half of the result is a whole number.
func roundUp(n int64) int64 {
	for power := int64(1); ; power *= 10 {
		for _, factor := range []int64{2, 4, 6, 8, 10} {
			if n <= factor*power {
				return factor * power
			}
		}
	}
}
