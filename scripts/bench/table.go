package bench

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// Result is one measurement of one round.
type Result struct {
	Name        string
	Connections int
	Rate        float64       // rows per second; 0 = not measured
	P50, P99    time.Duration // of a call; 0 = not known
	Cores       float64       // used by this program; 0 = not known
	Failures    map[string]int

	Baseline string  // name of the measurement that alternated with this one
	Ratio    float64 // of the rates, or of the durations if Rate is 0, to the baseline; 0 = not known
}

// Table collects the results of all rounds.
type Table struct {
	Progress io.Writer
	rows     [][]Result // of one name and number of connections each
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
		figure = fmt.Sprintf("%8.1f ms p50", ms(r.P50))
	}
	if r.Ratio > 0 {
		figure += fmt.Sprintf(", %.2f of %s", r.Ratio, r.Baseline)
	}
	fmt.Fprintf(t.Progress, "%-28s %4d connections %s\n", r.Name, r.Connections, figure)
	if err := r.Err(); err != nil {
		fmt.Fprintln(t.Progress, "failed:", err)
	}
}

// Rounds calls round once with a table that is thrown away, then n times.
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

// Err is not nil if a call failed, or nothing was measured.
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

// Err lists the calls that failed, by kind; nil if none did.
func (r Result) Err() error {
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(r.Failures)) {
		errs = append(errs, fmt.Errorf("%s, %d connections: %d x %s", r.Name, r.Connections, r.Failures[what], what))
	}
	return errors.Join(errs...)
}

// String is the table in Markdown: the medians of the rounds, and the range of the
// ratios.
func (t *Table) String() string {
	var b strings.Builder
	b.WriteString("| call | connections | rows/s | p50 ms | p99 ms | generator's cores | baseline | ratio: median (range) |\n|---|--:|--:|--:|--:|--:|---|--:|\n")
	for _, row := range t.rows {
		column := func(format string, value func(Result) float64) string {
			return known(format, load.Quantile(Sorted(row, value), 0.50))
		}
		ratios, ratio := Sorted(row, func(r Result) float64 { return r.Ratio }), "-"
		if ratios[0] > 0 {
			ratio = fmt.Sprintf("%.2f (%.2f to %.2f)", load.Quantile(ratios, 0.50), ratios[0], ratios[len(ratios)-1])
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s | %s |\n", row[0].Name, row[0].Connections,
			column("%.0f", func(r Result) float64 { return r.Rate }), column("%.1f", func(r Result) float64 { return ms(r.P50) }),
			column("%.1f", func(r Result) float64 { return ms(r.P99) }), column("%.2f", func(r Result) float64 { return r.Cores }), row[0].Baseline, ratio)
	}
	return b.String()
}

// Sorted returns a value of each of the results, ascending.
func Sorted[R any](results []R, value func(R) float64) []float64 {
	values := make([]float64, len(results))
	for i, r := range results {
		values[i] = value(r)
	}
	slices.Sort(values)
	return values
}

func known(format string, value float64) string {
	if value == 0 {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
