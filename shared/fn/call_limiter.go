package fn

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// Places beside SENDONCE_MAX_CALLS and SENDONCE_MAX_WAITING.
const (
	reservedCalls = 32  // for admins whom the others, or their own share, leave none
	maxEvents     = 256 // for the trigger's events

	// maxKeptReading is how many calls whose bodies are being read keep their connections
	// open: with those that have a place they are fewer than the connections may be.
	maxKeptReading = idleConnections / 2
)

// callLimiter bounds the calls under way and signals the drain to them. A call takes its place
// once its caller is known; what comes before costs little and is bounded by itself
// (see package auth). No caller has more than its share of a pool, so that the others
// go on; an admin who finds none left has the reserve, so that a caller can always
// be revoked. Probes and scrapes need no place.
//
// While its body is being read, a call counts for its caller's share and takes no place:
// so callers that send bodies slowly, however many they are, leave all places to others.
type callLimiter struct {
	draining chan struct{}

	mu       sync.Mutex
	inFlight int // all that have come and are not answered
	closed   bool
	reading  int // bodies of calls that have given back their place

	calls    seatPool // that are worked on
	waiting  seatPool // polls that wait, streams and sockets
	reserved seatPool
	events   seatPool
}

// seatPool is a number of places.
type seatPool struct {
	max, share int
	taken      int
	byCaller   map[string]int // by the name of the caller; no entry for none

	errFull, errShare *task.Error
}

// seat is the place of one call.
type seat struct {
	limiter *callLimiter
	pool    *seatPool
	caller  string
	admin   bool // may use the reserve
	reading bool // counts for its caller's share, and takes no place
}

func newCallLimiter(cfg *settings.Config) *callLimiter {
	share := func(n int) int { return max(1, int(math.Ceil(float64(n)*cfg.CallerShare))) }
	full, over := Busy("all of this instance's calls are taken"), tooManyCalls("calls under way", time.Second)
	return &callLimiter{
		draining: make(chan struct{}),
		calls:    newSeatPool(cfg.MaxCalls, share(cfg.MaxCalls), full, over),
		reserved: newSeatPool(reservedCalls, reservedCalls/2, full, over),
		events:   newSeatPool(maxEvents, maxEvents, full, over),
		waiting: newSeatPool(cfg.MaxWaiting, share(cfg.MaxWaiting),
			&task.Error{Code: task.CodeServerBusy, Message: "as many polls and streams wait as this instance may have", RetryAfter: waitingRetryAfter},
			tooManyCalls("waiting polls and streams", waitingRetryAfter)),
	}
}

// waitingRetryAfter is longer than for other calls: polls and streams last.
const waitingRetryAfter = 5 * time.Second

func newSeatPool(max, share int, full, over *task.Error) seatPool {
	return seatPool{max: max, share: share, byCaller: map[string]int{}, errFull: full, errShare: over}
}

func tooManyCalls(what string, after time.Duration) *task.Error {
	return &task.Error{Code: codeTooManyCalls, Message: "this caller has too many " + what + "; come back after Retry-After", RetryAfter: after}
}

func (p *seatPool) acquire(caller string) error {
	switch {
	case p.byCaller[caller] >= p.share:
		return p.errShare
	case p.taken >= p.max:
		return p.errFull
	}
	p.taken++
	p.byCaller[caller]++
	return nil
}

func (p *seatPool) release(caller string) {
	p.taken--
	if p.byCaller[caller]--; p.byCaller[caller] == 0 {
		delete(p.byCaller, caller)
	}
}

// begin lets a call in until the gate is shut; every call that entered must leave.
func (l *callLimiter) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.inFlight++
	return true
}

func (l *callLimiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
}

// acquireSeat takes a place for a call of a caller; leave must follow.
func (l *callLimiter) acquireSeat(caller callers.Caller, event, stream bool) (*seat, error) {
	from := &l.calls
	switch {
	case event:
		from = &l.events
	case stream:
		from = &l.waiting
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := from.acquire(caller.SharesOf())
	admin := slices.Contains(caller.Roles, string(Admin)) && len(caller.Queues) == 0
	if err != nil && from == &l.calls && admin {
		from = &l.reserved
		err = from.acquire(caller.SharesOf())
	}
	if err != nil {
		return nil, err
	}
	return &seat{limiter: l, pool: from, caller: caller.SharesOf(), admin: admin}, nil
}

func (s *seat) release() {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	s.giveUp()
}

// giveUp is release; mu is held.
func (s *seat) giveUp() {
	if s.reading {
		s.retake()
	}
	s.pool.release(s.caller)
}

// retake ends the reading; mu is held.
func (s *seat) retake() {
	s.reading = false
	s.limiter.reading--
	s.pool.taken++
}

// startReading gives the place back while the body is read, unless it is one of the
// reserve, of events or of those that wait. few says whether so few bodies are being read
// that the connection may be kept open.
func (s *seat) startReading() (few bool) {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if s.pool != &s.limiter.calls {
		return true
	}
	s.reading = true
	s.pool.taken--
	s.limiter.reading++
	return s.limiter.reading <= maxKeptReading
}

// endReading takes a place again, of the reserve where an admin finds none.
func (s *seat) endReading() error {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	switch {
	case !s.reading:
	case s.pool.taken < s.pool.max:
		s.retake()
	case !s.admin:
		return s.pool.errFull
	default:
		if err := s.limiter.reserved.acquire(s.caller); err != nil {
			return err
		}
		s.giveUp()
		s.pool = &s.limiter.reserved
	}
	return nil
}

// moveToWaiting moves a call to the places of those that wait, where it stays. It keeps the
// place that it has if there is none.
func (s *seat) moveToWaiting() error {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if err := s.limiter.waiting.acquire(s.caller); err != nil {
		return err
	}
	s.pool.release(s.caller)
	s.pool = &s.limiter.waiting
	return nil
}

// seats is how many calls there may be at once.
func (l *callLimiter) seats() int { return l.calls.max + l.waiting.max + l.reserved.max + l.events.max }

// takenSeats is how many places are, by pool.
func (l *callLimiter) takenSeats() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return map[string]int{"calls": l.calls.taken, "waiting": l.waiting.taken, "reserved": l.reserved.taken, "events": l.events.taken}
}

// close lets no further call in.
func (l *callLimiter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *callLimiter) countInFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight
}

// waitUntilIdle returns when no call is under way, or with the error of ctx.
func (l *callLimiter) waitUntilIdle(ctx context.Context) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for l.countInFlight() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (l *callLimiter) isDraining() bool {
	select {
	case <-l.draining:
		return true
	default:
		return false
	}
}
