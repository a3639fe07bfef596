package load

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Call makes one call. After a call that returned an error, the next call must send the same request again, with the
// same idempotency key.
type Call func(ctx context.Context) error

// Generator makes calls from several goroutines at once. All methods may be called from
// any goroutine.
type Generator struct {
	ctx      context.Context
	stopping context.Context // ends with Stop or ctx
	stop     context.CancelFunc
	workers  sync.WaitGroup

	mu       sync.Mutex
	outcomes map[string]*Outcomes // by kind
}

// Outcomes counts the results of the calls of one kind.
type Outcomes struct {
	Succeeded int
	Failures  []error         // in time order
	Took      []time.Duration // duration of each call that succeeded, in time order
}

// Slowest returns the longest of Took; 0 = no call succeeded.
func (o Outcomes) Slowest() time.Duration { return slices.Max(append(o.Took, 0)) }

// New returns a generator whose calls end with ctx.
func New(ctx context.Context) *Generator {
	stopping, stop := context.WithCancel(ctx)
	return &Generator{ctx: ctx, stopping: stopping, stop: stop, outcomes: map[string]*Outcomes{}}
}

// Start makes calls in a new goroutine until Stop: one every interval; interval 0 = without a pause. If the last call
// before Stop fails, it is repeated until it succeeds or the context of New ends.
func (g *Generator) Start(kind string, interval time.Duration, call Call) {
	g.mu.Lock()
	if g.outcomes[kind] == nil {
		g.outcomes[kind] = &Outcomes{}
	}
	g.mu.Unlock()
	g.workers.Go(func() {
		var tick <-chan time.Time
		if interval > 0 {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			tick = ticker.C
		}
		for failed := false; failed || g.stopping.Err() == nil; {
			if interval > 0 {
				select {
				case <-tick:
				case <-g.ctx.Done():
				}
			}
			if g.ctx.Err() != nil {
				return
			}
			started := time.Now()
			err := call(g.ctx)
			if err != nil && g.ctx.Err() != nil {
				return
			}
			g.record(kind, time.Since(started), err)
			failed = err != nil
		}
	})
}

func (g *Generator) record(kind string, took time.Duration, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.outcomes[kind]
	if err != nil {
		o.Failures = append(o.Failures, err)
		return
	}
	o.Succeeded++
	o.Took = append(o.Took, took)
}

// Stop lets each goroutine finish its call, with the repeats that Start describes, and waits until all goroutines have
// ended. It may be called more than once.
func (g *Generator) Stop() {
	g.stop()
	g.workers.Wait()
}

// Outcomes returns a copy of the outcomes so far, by kind.
func (g *Generator) Outcomes() map[string]Outcomes {
	g.mu.Lock()
	defer g.mu.Unlock()
	copies := map[string]Outcomes{}
	for kind, o := range g.outcomes {
		copies[kind] = Outcomes{o.Succeeded, slices.Clone(o.Failures), slices.Clone(o.Took)}
	}
	return copies
}

// WaitSucceeded waits until n more calls of each of the kinds have succeeded. Without kinds
// it waits for every kind that was started.
func (g *Generator) WaitSucceeded(ctx context.Context, n int, kinds ...string) error {
	return g.wait(ctx, n, "successful", kinds, func(o *Outcomes) int { return o.Succeeded })
}

// WaitFailed waits until n more calls of each of the kinds have failed.
func (g *Generator) WaitFailed(ctx context.Context, n int, kinds ...string) error {
	return g.wait(ctx, n, "failed", kinds, func(o *Outcomes) int { return len(o.Failures) })
}

func (g *Generator) wait(ctx context.Context, n int, outcome string, kinds []string, count func(*Outcomes) int) error {
	want := map[string]int{}
	missing := func() (names []string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(kinds) == 0 {
			kinds = slices.Sorted(maps.Keys(g.outcomes))
		}
		for _, kind := range kinds {
			have := count(g.outcomes[kind])
			if _, known := want[kind]; !known {
				want[kind] = have + n
			}
			if have < want[kind] {
				names = append(names, kind)
			}
		}
		return names
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		names := missing()
		if len(names) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d more %s calls of %s: %w", n, outcome, strings.Join(names, ", "), ctx.Err())
		}
	}
}

// Quantile returns the quantile q (0 to 1) of the sorted values, or the zero value if there are none.
func Quantile[T any](sorted []T, q float64) (value T) {
	if len(sorted) > 0 {
		value = sorted[int(q*float64(len(sorted)-1))]
	}
	return value
}
