package fn

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Places beside SENDONCE_MAX_CALLS and SENDONCE_MAX_WAITING.
const (
	reservedCalls = 32  // for admins whom the others, or their own share, leave none
	maxEvents     = 256 // for the trigger's events
)

// gate bounds the calls under way and signals the drain to them. A call takes its place
// once its caller is known; what comes before costs little and is bounded by itself
// (see guesses). No caller has more than its share of a pool, so that the others
// go on; an admin who finds none left has the reserve, so that somebody can always
// revoke a caller. Probes and scrapes need no place.
type gate struct {
	draining chan struct{}

	mu       sync.Mutex
	underWay int // all that have come and are not answered
	closed   bool

	calls    pool // that are worked on
	waiting  pool // polls that wait, streams and sockets
	reserved pool
	events   pool
}

// pool is a number of places.
type pool struct {
	max, share int
	taken      int
	by         map[string]int // by the name of the caller; no entry for none

	full, over *task.Error
}

// seat is the place of one call.
type seat struct {
	gate   *gate
	pool   *pool
	caller string
}

func newGate(cfg *Config) *gate {
	share := func(n int) int { return max(1, int(math.Ceil(float64(n)*cfg.CallerShare))) }
	full, over := busy("all of this instance's calls are taken"), tooManyCalls("calls under way", time.Second)
	return &gate{
		draining: make(chan struct{}),
		calls:    newPool(cfg.MaxCalls, share(cfg.MaxCalls), full, over),
		reserved: newPool(reservedCalls, reservedCalls/2, full, over),
		events:   newPool(maxEvents, maxEvents, full, over),
		waiting: newPool(cfg.MaxWaiting, share(cfg.MaxWaiting),
			&task.Error{Code: task.CodeServerBusy, Message: "as many polls and streams wait as this instance may have", RetryAfter: waitingAgain},
			tooManyCalls("waiting polls and streams", waitingAgain)),
	}
}

// waitingAgain is longer than for other calls: polls and streams last.
const waitingAgain = 5 * time.Second

func newPool(max, share int, full, over *task.Error) pool {
	return pool{max: max, share: share, by: map[string]int{}, full: full, over: over}
}

func tooManyCalls(what string, after time.Duration) *task.Error {
	return &task.Error{Code: codeTooManyCalls, Message: "this caller has too many " + what + "; come back after Retry-After", RetryAfter: after}
}

func (p *pool) take(caller string) error {
	switch {
	case p.by[caller] >= p.share:
		return p.over
	case p.taken >= p.max:
		return p.full
	}
	p.taken++
	p.by[caller]++
	return nil
}

func (p *pool) give(caller string) {
	p.taken--
	if p.by[caller]--; p.by[caller] == 0 {
		delete(p.by, caller)
	}
}

// enter lets a call in until the gate is shut; every call that entered must leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.underWay++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.underWay--
}

// takeSeat takes a place for a call of a caller; leave must follow.
func (g *gate) takeSeat(caller store.Caller, event, stream bool) (*seat, error) {
	from := &g.calls
	switch {
	case event:
		from = &g.events
	case stream:
		from = &g.waiting
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	err := from.take(caller.Name)
	if err != nil && from == &g.calls && slices.Contains(caller.Roles, string(Admin)) && len(caller.Queues) == 0 {
		from = &g.reserved
		err = from.take(caller.Name)
	}
	if err != nil {
		return nil, err
	}
	return &seat{g, from, caller.Name}, nil
}

func (s *seat) leave() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.pool.give(s.caller)
}

// wait moves a call to the places of those that wait, where it stays. It keeps the
// place that it has if there is none.
func (s *seat) wait() error {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if err := s.gate.waiting.take(s.caller); err != nil {
		return err
	}
	s.pool.give(s.caller)
	s.pool = &s.gate.waiting
	return nil
}

// places is how many calls there may be at once.
func (g *gate) places() int { return g.calls.max + g.waiting.max + g.reserved.max + g.events.max }

// taken is how many places are, by pool.
func (g *gate) taken() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return map[string]int{"calls": g.calls.taken, "waiting": g.waiting.taken, "reserved": g.reserved.taken, "events": g.events.taken}
}

// shut lets no further call in.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.underWay
}

// untilEmpty returns when no call is under way, or with the error of ctx.
func (g *gate) untilEmpty(ctx context.Context) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for g.count() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (g *gate) isDraining() bool {
	select {
	case <-g.draining:
		return true
	default:
		return false
	}
}
