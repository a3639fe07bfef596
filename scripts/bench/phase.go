package bench

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
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
	Warmup      time.Duration // calls that begin in it are not counted
	Duration    time.Duration // after the warm-up
	Rows        int           // of all calls together
	Batch       int           // rows of a call; 0 = 1
	Baselines   []Baseline    // of Measure

	// Wait is called before each call and is no part of it; false ends the connection. nil = no wait.
	Wait func(context.Context) bool
	Call func(c *Client, n int) (rows int, err error) // n is at most Batch
}

// Measure measures the baselines and then the phase, and compares their rates.
func (p Phase) Measure(ctx context.Context, address string) (Result, error) {
	rates := make([]float64, len(p.Baselines))
	for i, b := range p.Baselines {
		var err error
		if rates[i], err = b.Rate(ctx); err != nil {
			return Result{}, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	r, err := p.Run(ctx, address)
	for i, b := range p.Baselines {
		r.Compare(b.Name, rates[i])
	}
	return r, err
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
	used, begun := cpuTime(), time.Now()
	run := phaseRun{Phase: p, measured: begun.Add(p.Warmup)}
	run.left.Store(int64(p.Rows))
	until, cancel := context.WithDeadline(ctx, run.measured.Add(p.Duration))
	defer cancel()
	calls := make([][]call, len(clients))
	var connections sync.WaitGroup
	for i, c := range clients {
		connections.Go(func() { calls[i] = run.connection(until, c) })
	}
	connections.Wait()
	r := newResult(calls, time.Since(run.measured))
	r.Name, r.Connections, r.Cores = p.Name, p.Connections, (cpuTime()-used).Seconds()/time.Since(begun).Seconds()
	return r, ctx.Err()
}

type phaseRun struct {
	Phase
	measured time.Time // when the warm-up is over
	left     atomic.Int64
}

// connection makes one call after another until the context ends, and returns those that began
// after the warm-up.
func (r *phaseRun) connection(ctx context.Context, c *Client) (calls []call) {
	for failures := 0; failures < maxFailures && ctx.Err() == nil; {
		if r.Wait != nil && !r.Wait(ctx) {
			return calls
		}
		n := take(&r.left, max(r.Batch, 1))
		if n == 0 {
			return calls
		}
		begun := time.Now()
		rows, err := r.Call(c, n)
		r.left.Add(int64(n - rows))
		if failures++; err == nil {
			failures = 0
		}
		if err != nil || !begun.Before(r.measured) {
			calls = append(calls, call{ended: time.Since(r.measured), took: time.Since(begun), rows: rows, err: err})
		}
	}
	return calls
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
