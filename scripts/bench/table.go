package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// Table collects the results of all rounds.
type Table struct {
	Progress io.Writer
	rows     [][]Result // each row has the results of all rounds for one name and number of connections
}

// Add adds a result and prints it.
func (t *Table) Add(r Result) {
	i := slices.IndexFunc(t.rows, func(row []Result) bool { return row[0].Name == r.Name && row[0].Connections == r.Connections })
	if i < 0 {
		i, t.rows = len(t.rows), append(t.rows, nil)
	}
	t.rows[i] = append(t.rows[i], r)
	figure := fmt.Sprintf("%8.0f rows/s", r.Rate)
	if r.Rate == 0 {
		figure = fmt.Sprintf("%8.1f ms p50", MS(r.Latency(0.50)))
	}
	for _, ratio := range r.Ratios {
		figure += fmt.Sprintf(", %.2f of %s", ratio.Ratio, ratio.Baseline)
	}
	fmt.Fprintf(t.Progress, "%-28s %4d connections %s\n", r.Name, r.Connections, figure)
	if err := r.Err(); err != nil {
		fmt.Fprintln(t.Progress, "failed:", err)
	}
}

// Rounds calls round once to warm up, with a table that is discarded, and then n times with t.
func (t *Table) Rounds(n int, round func(*Table) error) error {
	if err := round(&Table{Progress: io.Discard}); err != nil {
		return err
	}
	for range n {
		if err := round(t); err != nil {
			return err
		}
	}
	return nil
}

// Err returns an error if a call failed or nothing was measured.
func (t *Table) Err() error {
	if len(t.rows) == 0 {
		return errors.New("nothing was measured")
	}
	var errs []error
	for _, row := range t.rows {
		for _, r := range row {
			errs = append(errs, r.Err())
		}
	}
	return errors.Join(errs...)
}

const tableHead = `| call | connections | rows/s | p50 ms | p95 ms | p99 ms | p99.9 ms | generator's cores | baseline | its rows/s | ratio: median (range) |
|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|
`

// String returns the table in Markdown, with the medians of the rounds and the range of the ratios. The second and later
// baselines of a measurement have lines of their own.
func (t *Table) String() string {
	var b strings.Builder
	b.WriteString(tableHead)
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s | %d | %s |", row[0].Name, row[0].Connections, formatOrDash("%.0f", median(row, func(r Result) float64 { return r.Rate })))
		for _, q := range []float64{0.50, 0.95, 0.99, 0.999} {
			fmt.Fprintf(&b, " %s |", formatOrDash("%.1f", medianLatency(row, q)))
		}
		fmt.Fprintf(&b, " %s |", formatOrDash("%.2f", median(row, func(r Result) float64 { return r.Cores })))
		for i := range row[0].Ratios {
			if i > 0 {
				b.WriteString("| | | | | | | | |")
			}
			ratios, summary := Sorted(row, func(r Result) float64 { return r.Ratios[i].Ratio }), "-"
			if ratios[0] > 0 {
				summary = fmt.Sprintf("%.2f (%.2f to %.2f)", load.Quantile(ratios, 0.50), ratios[0], ratios[len(ratios)-1])
			}
			fmt.Fprintf(&b, " %s | %s | %s |\n", row[0].Ratios[i].Baseline, formatOrDash("%.0f", median(row, func(r Result) float64 { return r.Ratios[i].Rate })), summary)
		}
		if len(row[0].Ratios) == 0 {
			b.WriteString(" - | - | - |\n")
		}
	}
	return b.String()
}

var percentiles = []float64{10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100}

// JSON returns every measurement of every round, and a description of the machine.
func (t *Table) JSON(m *Machine) ([]byte, error) {
	type result struct {
		Round int `json:"round"`
		Result
		Calls   int                `json:"calls,omitempty"`
		Latency map[string]float64 `json:"latency_ms,omitempty"` // by percentile
	}
	results := []result{}
	for _, row := range t.rows {
		for i, r := range row {
			latency := map[string]float64{}
			for _, p := range percentiles {
				if len(r.Took) > 0 {
					latency[fmt.Sprint(p)] = MS(r.Latency(p / 100).Round(time.Microsecond))
				}
			}
			results = append(results, result{Round: i + 1, Result: r, Calls: len(r.Took), Latency: latency})
		}
	}
	return json.MarshalIndent(map[string]any{"machine": m.String(), "results": results}, "", "\t")
}

func median(row []Result, value func(Result) float64) float64 {
	return load.Quantile(Sorted(row, value), 0.50)
}

// medianLatency returns the median of the latencies of the rounds at the quantile q, in ms.
func medianLatency(row []Result, q float64) float64 {
	return median(row, func(r Result) float64 { return MS(r.Latency(q)) })
}

// Sorted returns the values of all results, ascending.
func Sorted[R any](results []R, value func(R) float64) []float64 {
	values := make([]float64, len(results))
	for i, r := range results {
		values[i] = value(r)
	}
	slices.Sort(values)
	return values
}

// formatOrDash formats a value. A value of 0 means "not known" and becomes "-".
func formatOrDash(format string, value float64) string {
	if value == 0 {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

// MS returns a duration in milliseconds.
func MS(d time.Duration) float64 { return d.Seconds() * 1000 }
