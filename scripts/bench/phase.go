package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// maxFailures in a row end a connection.
const maxFailures = 10

// NoLimit is the Rows of a phase that only its duration ends.
const NoLimit = math.MaxInt64

// Phase is one kind of call, made over a number of connections at once until the
// duration is over or no rows are left.
type Phase struct {
	Name        string
	Connections int
	Duration    time.Duration
	Rows        int                                          // of all calls together
	Batch       int                                          // rows of a call; 0 = 1
	Call        func(c *Client, n int) (rows int, err error) // n is at most Batch
}

// Run returns the rate of rows and the latencies of the calls. All connections are
// open before the clock starts.
func (p Phase) Run(ctx context.Context, address string) (Result, error) {
	clients := make([]*Client, p.Connections)
	for i := range clients {
		c, err := Dial(address)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		defer c.Close()
		clients[i] = c
	}
	var left, rows atomic.Int64
	left.Store(int64(p.Rows))
	g := load.New(ctx)
	used, begun := cpuTime(), time.Now()
	for _, c := range clients {
		failures := 0
		g.Start(p.Name, 0, func(context.Context) error {
			n := take(&left, max(p.Batch, 1))
			if n == 0 || failures == maxFailures {
				return load.ErrNoMore
			}
			done, err := p.Call(c, n)
			left.Add(int64(n - done))
			rows.Add(int64(done))
			if failures++; err == nil {
				failures = 0
			}
			return err
		})
	}
	g.Run(p.Duration)
	took := time.Since(begun)
	outcomes := g.Outcomes()[p.Name]
	slices.Sort(outcomes.Took)
	r := Result{
		Name: p.Name, Connections: p.Connections, Rate: float64(rows.Load()) / took.Seconds(),
		P50: load.Quantile(outcomes.Took, 0.50), P99: load.Quantile(outcomes.Took, 0.99),
		Cores: (cpuTime() - used).Seconds() / took.Seconds(), Failures: map[string]int{},
	}
	for _, err := range outcomes.Failures {
		r.Failures[err.Error()]++
	}
	return r, ctx.Err()
}

// take takes up to n rows from those that are left.
func take(left *atomic.Int64, n int) int {
	for {
		have := left.Load()
		got := min(have, int64(n))
		if got <= 0 {
			return 0
		}
		if left.CompareAndSwap(have, have-got) {
			return int(got)
		}
	}
}

// cpuTime is what this process has used of all cores.
func cpuTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // which cannot fail with these arguments
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Sample makes one measurement after another for d, at least 30 ms apart: wake-ups
// that follow each other within 20 ms are sent as one. Each measurement returns its own duration
// and that of its baseline.
func Sample(ctx context.Context, d time.Duration, one func() (took, baseline time.Duration, err error)) (r Result, err error) {
	pace := time.NewTicker(30 * time.Millisecond)
	defer pace.Stop()
	var all, baselines []time.Duration
	for end := time.Now().Add(d); len(all) == 0 || time.Now().Before(end); {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return r, ctx.Err()
		}
		took, baseline, err := one()
		if err != nil {
			return r, err
		}
		all, baselines = append(all, took), append(baselines, baseline)
	}
	slices.Sort(all)
	slices.Sort(baselines)
	r = Result{P50: load.Quantile(all, 0.50), P99: load.Quantile(all, 0.99)}
	r.Ratio = r.P50.Seconds() / load.Quantile(baselines, 0.50).Seconds()
	return r, nil
}
