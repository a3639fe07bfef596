package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const maxFailures = 10 // after this number of consecutive failures a connection makes no more calls

// NoLimit is for Phase.MaxRows: the rows do not end the phase.
const NoLimit = math.MaxInt64

// Phase is one kind of call, made over a number of connections at once, until Duration is over or MaxRows rows are done.
type Phase struct {
	Name           string
	Connections    int
	Warmup         time.Duration // successful calls that end in this time are not counted; failed calls are
	Duration       time.Duration // after the warm-up
	MaxRows        int           // of all calls together, also of those in the warm-up; required, may be NoLimit
	Batch          int           // most rows of one call; 0 = 1
	CallsPerSecond float64       // on average, at times that are fixed in advance; 0 = each call begins when the previous one has ended
	Baselines      []Baseline    // used by Measure only

	// Wait is called before each call; the latency does not include it. If it returns false, the connection
	// makes no more calls. nil = no wait. Wait is not called if CallsPerSecond is set.
	Wait func(context.Context) bool
	Call func(c *Client, n int) (rows int, err error) // makes a call for n rows, at most Batch; rows = how many were done
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

// Run runs the phase and returns the rate of rows and the latencies of the calls. Before the clock starts, it opens
// all connections, to the addresses in turn. With CallsPerSecond, the latency of a call counts from its fixed time,
// so that the latency includes the wait for a free connection.
func (p Phase) Run(ctx context.Context, addresses ...string) (Result, error) {
	clients := make([]*Client, p.Connections)
	for i := range clients {
		c, err := Dial(addresses[i%len(addresses)])
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		defer c.Close()
		clients[i] = c
	}
	arrivals := p.arrivals()
	cpuBefore, startedAt := cpuTime(), time.Now()
	run := phaseRun{Phase: p, startedAt: startedAt, measureAt: startedAt.Add(p.Warmup), arrivals: arrivals}
	run.remaining.Store(int64(p.MaxRows))
	phaseCtx, cancel := context.WithDeadline(ctx, run.measureAt.Add(p.Duration))
	defer cancel()
	calls := make([][]call, len(clients)) // of each connection
	var connections sync.WaitGroup
	for i, c := range clients {
		connections.Go(func() { calls[i] = run.makeCalls(ctx, phaseCtx, c) })
	}
	connections.Wait()
	r := newResult(calls, time.Since(run.measureAt))
	r.Name, r.Connections, r.Cores = p.Name, p.Connections, (cpuTime()-cpuBefore).Seconds()/time.Since(startedAt).Seconds()
	return r, ctx.Err()
}

// arrivals returns the times at which calls must begin, counted from the first call. Like the calls of independent callers,
// the times are a Poisson process; they are the same in each run. If CallsPerSecond is 0, arrivals returns nil.
func (p Phase) arrivals() (times []time.Duration) {
	if p.CallsPerSecond == 0 {
		return nil
	}
	random := rand.New(rand.NewPCG(1, 2))
	for at := 0.0; at < (p.Warmup + p.Duration).Seconds(); at += random.ExpFloat64() / p.CallsPerSecond {
		times = append(times, time.Duration(at*float64(time.Second)))
	}
	return times
}

// phaseRun is one run of a phase.
type phaseRun struct {
	Phase
	startedAt time.Time
	measureAt time.Time // the end of the warm-up
	arrivals  []time.Duration
	next      atomic.Int64 // index in arrivals
	remaining atomic.Int64 // rows of MaxRows that are neither done nor taken by a running call
}

// waitNext waits until the next call must begin, and returns that time. It returns false if the connection must make no more
// calls. phaseCtx ends when the duration of the phase is over.
func (r *phaseRun) waitNext(ctx, phaseCtx context.Context) (time.Time, bool) {
	if r.CallsPerSecond == 0 {
		more := phaseCtx.Err() == nil && (r.Wait == nil || r.Wait(phaseCtx))
		return time.Now(), more
	}
	i := int(r.next.Add(1)) - 1
	if i >= len(r.arrivals) || ctx.Err() != nil {
		return time.Time{}, false
	}
	at := r.startedAt.Add(r.arrivals[i])
	time.Sleep(time.Until(at))
	return at, true
}

// makeCalls makes one call after another, and returns those that failed or ended after the warm-up.
func (r *phaseRun) makeCalls(ctx, phaseCtx context.Context, c *Client) (calls []call) {
	for failures := 0; failures < maxFailures; {
		startedAt, more := r.waitNext(ctx, phaseCtx)
		if !more {
			return calls
		}
		n := takeRows(&r.remaining, max(r.Batch, 1))
		if n == 0 {
			return calls
		}
		rows, err := r.Call(c, n)
		r.remaining.Add(int64(n - rows))
		if failures++; err == nil {
			failures = 0
		}
		if ended := time.Since(r.measureAt); err != nil || ended >= 0 {
			calls = append(calls, call{ended: max(ended, 0), took: time.Since(startedAt), rows: rows, err: err})
		}
	}
	return calls
}

// takeRows subtracts n from remaining, or all that remain if they are fewer, and returns how many it subtracted.
func takeRows(remaining *atomic.Int64, n int) int {
	for {
		rows := remaining.Load()
		taken := min(rows, int64(n))
		if taken <= 0 {
			return 0
		}
		if remaining.CompareAndSwap(rows, rows-taken) {
			return int(taken)
		}
	}
}

// cpuTime returns the CPU time that this process has used on all cores.
func cpuTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // cannot fail with these arguments
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
