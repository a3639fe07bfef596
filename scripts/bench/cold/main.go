// Command cold is `make bench-cold`. It measures the time from the start of each function
// to its first response, which needs a login to Postgres and a query, and its memory. After
// each start it starts the baseline: net/http and pgx alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

const (
	ratioLimit    = 2.5        // median of the ratios to the baseline
	residentLimit = 25_000_000 // bytes
)

func main() {
	runs := flag.Int("runs", 20, "how often each function is started, 1 to 500")
	flag.Parse()
	bench.Main("bench-cold", func(ctx context.Context, progress io.Writer) (string, error) {
		rows, report, err := run(ctx, *runs, nil, progress)
		return report, errors.Join(err, check(rows))
	})
}

// run measures the named functions, or all if there are none.
func run(ctx context.Context, runs int, functions []string, progress io.Writer) (rows []row, report string, err error) {
	if runs < 1 || runs > 500 {
		return nil, "", errors.New("-runs must be from 1 to 500")
	}
	err = bench.Prepare(ctx, progress, func(m *bench.Machine) (err error) {
		size, err := os.Stat(m.Binary)
		if err != nil {
			return err
		}
		if m.Binary, err = unpacked(m.Binary); err != nil {
			return err
		}
		// The function wechat needs an app. It does not call WeChat, since there is nothing to send.
		stack, err := bench.NewStack(ctx, m, "WECHAT_APP_ID=cold", "WECHAT_APP_SECRET=cold")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stack.Close()) }()
		rows, err = measure(ctx, stack, runs, functions, progress)
		report = table(rows) + fmt.Sprintf("\n%s\n", m) + fmt.Sprintf(text, runs, megabytes(size.Size()))
		return err
	})
	return rows, report, err
}

const text = `Each function alone, %d starts: the time from before the fork until its first call gets a 2xx, which needs a login to Postgres and at
least one query. The baseline is a program that needs only net/http and pgx for a login and one query; it is started after each start of the
function, and the ratio is that of the two. Through PgBouncer, as in the production overlay, a start uses open connections: the median of as
many starts. Memory is the VmRSS after the first call, once it is stable, the maximum of all starts; a part of it is pages of the binary, which
instances on one machine share. The binary has %.1f MB (1 MB = 1000000 bytes) and is in memory as after its image was unpacked.
`

// row has the starts of one function, in time order.
type row struct {
	function string
	took     []time.Duration
	baseline []time.Duration // of the baseline, after each start
	pooled   []time.Duration // through PgBouncer; nil = PgBouncer is not installed
	resident int64           // bytes, the most of all starts
}

func (r row) ratios() []float64 {
	ratios := make([]float64, len(r.took))
	for i := range r.took {
		ratios[i] = r.took[i].Seconds() / r.baseline[i].Seconds()
	}
	return bench.Sorted(ratios, func(ratio float64) float64 { return ratio })
}

func sortedMS(times []time.Duration) []float64 {
	return bench.Sorted(times, func(d time.Duration) float64 { return d.Seconds() * 1000 })
}

func (r row) String() string {
	took, ratios, pooled := sortedMS(r.took), r.ratios(), "-"
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
		if ratio := load.Quantile(r.ratios(), 0.50); ratio > ratioLimit {
			errs = append(errs, fmt.Errorf("%s takes %.2f times its baseline, more than %.1f", r.function, ratio, ratioLimit))
		}
		if r.resident > residentLimit {
			errs = append(errs, fmt.Errorf("%s keeps %.1f MB, more than %.0f", r.function, megabytes(r.resident), megabytes(residentLimit)))
		}
	}
	return errors.Join(errs...)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
