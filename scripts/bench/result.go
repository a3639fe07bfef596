package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// Result is one measurement in one round.
type Result struct {
	Name        string          `json:"name"`
	Connections int             `json:"connections"`
	Rate        float64         `json:"rows_per_second,omitempty"` // 0 = not measured
	Took        []time.Duration `json:"-"`                         // durations of the successful calls, ascending; may be empty
	Series      []int           `json:"rows_per_100ms,omitempty"`
	Cores       float64         `json:"generator_cores,omitempty"` // used by this program; 0 = not known
	Failures    map[string]int  `json:"failures,omitempty"`
	Ratios      []Ratio         `json:"ratios,omitempty"`
}

const seriesStep = 100 * time.Millisecond // of Series

// Ratio compares a result with a baseline of the same round.
type Ratio struct {
	Baseline string  `json:"baseline"`
	Rate     float64 `json:"rows_per_second,omitempty"` // of the baseline; 0 = not measured, or durations are compared
	Ratio    float64 `json:"ratio,omitempty"`           // of the rates, or of durations; 0 = not known
}

// call is the result of one call.
type call struct {
	ended, took time.Duration // ended counts from the end of the warm-up
	rows        int
	err         error
}

// newResult combines the calls of all connections. lasted is the time since the end of the warm-up; it is negative if the
// phase ended earlier.
func newResult(connections [][]call, lasted time.Duration) Result {
	lasted = max(lasted, 0)
	r := Result{Series: make([]int, lasted/seriesStep), Failures: map[string]int{}}
	rows := 0
	for _, c := range slices.Concat(connections...) {
		if c.err != nil {
			r.Failures[c.err.Error()]++
			continue
		}
		rows += c.rows
		r.Took = append(r.Took, c.took)
		if step := int(c.ended / seriesStep); step < len(r.Series) {
			r.Series[step] += c.rows
		}
	}
	slices.Sort(r.Took)
	if lasted > 0 {
		r.Rate = float64(rows) / lasted.Seconds()
	}
	return r
}

// Latency returns the quantile q (0 to 1) of the durations.
func (r Result) Latency(q float64) time.Duration { return load.Quantile(r.Took, q) }

// Compare adds the ratio of r.Rate to the rate of a baseline. The rate 0 means that the baseline was not measured.
func (r *Result) Compare(baseline string, rate float64) {
	ratio := Ratio{Baseline: baseline, Rate: rate}
	if rate > 0 {
		ratio.Ratio = r.Rate / rate
	}
	r.Ratios = append(r.Ratios, ratio)
}

// Err lists the errors of the calls, with their numbers. It returns nil if no call failed.
func (r Result) Err() error {
	var errs []error
	for _, failure := range slices.Sorted(maps.Keys(r.Failures)) {
		errs = append(errs, fmt.Errorf("%s, %d connections: %d x %s", r.Name, r.Connections, r.Failures[failure], failure))
	}
	return errors.Join(errs...)
}

// Sample calls measure again and again for d, but at least once. It starts a measurement every 30 ms at most, because a
// process combines wake-ups of one function that are less than 20 ms apart. measure returns the durations of a
// measurement and of its baseline. The ratio is that of the medians.
func Sample(ctx context.Context, d time.Duration, baseline string, measure func() (took, baseline time.Duration, err error)) (r Result, err error) {
	pace := time.NewTicker(30 * time.Millisecond)
	defer pace.Stop()
	var baselines []time.Duration
	for end := time.Now().Add(d); len(baselines) == 0 || time.Now().Before(end); {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return r, ctx.Err()
		}
		took, baselineTook, err := measure()
		if err != nil {
			return r, err
		}
		r.Took, baselines = append(r.Took, took), append(baselines, baselineTook)
	}
	slices.Sort(r.Took)
	slices.Sort(baselines)
	r.Ratios = []Ratio{{Baseline: baseline, Ratio: r.Latency(0.50).Seconds() / load.Quantile(baselines, 0.50).Seconds()}}
	return r, nil
}
