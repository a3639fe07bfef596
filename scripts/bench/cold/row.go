package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

const (
	ratioLimit    = 2.5        // of the median of the ratios to the baseline
	residentLimit = 25_000_000 // bytes, of row.resident
)

// row has the starts of one function, in time order.
type row struct {
	function string
	took     []time.Duration
	baseline []time.Duration // of the baseline, after each start
	pooled   []time.Duration // through PgBouncer; nil = PgBouncer is not installed
	resident int64           // bytes, the maximum of the starts without PgBouncer
}

func (r row) sortedRatios() []float64 {
	ratios := make([]float64, len(r.took))
	for i := range r.took {
		ratios[i] = r.took[i].Seconds() / r.baseline[i].Seconds()
	}
	return bench.Sorted(ratios, func(ratio float64) float64 { return ratio })
}

func sortedMS(times []time.Duration) []float64 {
	return bench.Sorted(times, bench.MS)
}

func (r row) String() string {
	took, ratios, pooled := sortedMS(r.took), r.sortedRatios(), "-"
	if len(r.pooled) > 0 {
		pooled = fmt.Sprintf("%.1f", load.Quantile(sortedMS(r.pooled), 0.50))
	}
	return fmt.Sprintf("| %s | %.1f | %.1f | %.1f | %.2f (%.2f to %.2f) | %s | %.1f |", r.function, load.Quantile(took, 0.50), took[len(took)-1],
		load.Quantile(sortedMS(r.baseline), 0.50), load.Quantile(ratios, 0.50), ratios[0], ratios[len(ratios)-1], pooled, megabytes(r.resident))
}

func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| function | median ms | max ms | baseline ms | ratio: median (range) | through PgBouncer ms | idle memory MB |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range rows {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// check returns an error for each function above a limit.
func check(rows []row) error {
	if len(rows) == 0 {
		return errors.New("no function was measured")
	}
	var errs []error
	for _, r := range rows {
		if ratio := load.Quantile(r.sortedRatios(), 0.50); ratio > ratioLimit {
			errs = append(errs, fmt.Errorf("%s takes %.2f times its baseline, more than %.1f", r.function, ratio, ratioLimit))
		}
		if r.resident > residentLimit {
			errs = append(errs, fmt.Errorf("%s keeps %.1f MB, more than %.0f", r.function, megabytes(r.resident), megabytes(residentLimit)))
		}
	}
	return errors.Join(errs...)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
