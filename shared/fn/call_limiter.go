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

const (
	// Slots in addition to SENDONCE_MAX_CALLS and SENDONCE_MAX_WAITING.
	reservedCalls = 32  // for admins, if all slots for calls or the admin's share of them are in use
	maxEvents     = 256 // for the trigger's events

	// idleConnections is how many connections may be open in addition to one for each slot.
	idleConnections = 1024

	// maxKeptReading limits the calls whose connection the server must not close while their body is
	// read. These calls and the calls with a slot are together fewer than the connection limit, unless
	// the limit of open files is lower (see httpserver.New).
	maxKeptReading = idleConnections / 2
)

// callLimiter limits the concurrent calls and signals the drain to them. A call acquires its
// slot once its caller is known. The steps before that cost little and have their own limits
// (see package auth). No caller uses more than its share of a pool, so one caller cannot
// block the others; only the pool events has no shares. Admins who are not limited to queues may
// also use the pool reserved, so that they can revoke a caller although all other slots are in use. Probes and
// scrapes need no slot.
//
// A call with a slot of the pool calls releases it while its body is read, but still counts for its
// caller's share. So any number of callers that send bodies slowly leave all slots to others.
type callLimiter struct {
	draining chan struct{}

	mu       sync.Mutex
	inFlight int // calls without a response yet
	closed   bool
	reading  int // calls that have no slot because their body is being read

	calls    slotPool // calls that are being handled
	waiting  slotPool // waiting polls, streams and sockets
	reserved slotPool
	events   slotPool
}

// slotPool is a semaphore with a limit for each caller.
type slotPool struct {
	max, share int
	used       int
	byCaller   map[string]int // by QuotaName: calls that have a slot or whose body is being read; no entry for none

	errFull, errShare *task.Error
}

// slot is one call's use of a pool.
type slot struct {
	limiter *callLimiter
	pool    *slotPool
	caller  string
	admin   bool // not limited to queues; may use the pool reserved
	reading bool // counts for its caller's share, but not in used
}

func newCallLimiter(cfg *settings.Config) *callLimiter {
	share := func(n int) int { return max(1, int(math.Ceil(float64(n)*cfg.CallerShare))) }
	full, overShare := task.Busy("this instance has no slot for another call; retry after the time in Retry-After"), tooManyCalls("calls under way", time.Second)
	return &callLimiter{
		draining: make(chan struct{}),
		calls:    newSlotPool(cfg.MaxCalls, share(cfg.MaxCalls), full, overShare),
		reserved: newSlotPool(reservedCalls, reservedCalls/2, full, overShare),
		events:   newSlotPool(maxEvents, maxEvents, full, overShare),
		waiting: newSlotPool(cfg.MaxWaiting, share(cfg.MaxWaiting),
			&task.Error{Code: task.CodeServerBusy, Message: "this instance has no slot for another waiting poll or stream; retry after the time in Retry-After", RetryAfter: waitingRetryAfter},
			tooManyCalls("waiting polls and streams", waitingRetryAfter)),
	}
}

// waitingRetryAfter is longer than the Retry-After of other calls, because polls and streams take longer.
const waitingRetryAfter = 5 * time.Second

func newSlotPool(max, share int, full, overShare *task.Error) slotPool {
	return slotPool{max: max, share: share, byCaller: map[string]int{}, errFull: full, errShare: overShare}
}

func tooManyCalls(what string, after time.Duration) *task.Error {
	return &task.Error{Code: codeTooManyCalls, Message: "this caller has too many " + what + "; retry after the time in Retry-After", RetryAfter: after}
}

func (p *slotPool) acquire(caller string) error {
	switch {
	case p.byCaller[caller] >= p.share:
		return p.errShare
	case p.used >= p.max:
		return p.errFull
	}
	p.used++
	p.byCaller[caller]++
	return nil
}

func (p *slotPool) release(caller string) {
	p.used--
	if p.byCaller[caller]--; p.byCaller[caller] == 0 {
		delete(p.byCaller, caller)
	}
}

// begin counts a call, or returns false after close. end must be called for each counted call.
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

// acquireSlot acquires a slot for a call. The slot must be released.
func (l *callLimiter) acquireSlot(caller callers.Caller, event, stream bool) (*slot, error) {
	pool := &l.calls
	switch {
	case event:
		pool = &l.events
	case stream:
		pool = &l.waiting
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := pool.acquire(caller.QuotaName())
	admin := slices.Contains(caller.Roles, string(Admin)) && len(caller.Queues) == 0
	if err != nil && pool == &l.calls && admin {
		pool = &l.reserved
		err = pool.acquire(caller.QuotaName())
	}
	if err != nil {
		return nil, err
	}
	return &slot{limiter: l, pool: pool, caller: caller.QuotaName(), admin: admin}, nil
}

func (s *slot) release() {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked is release while mu is held.
func (s *slot) releaseLocked() {
	if s.reading {
		s.countAsUsed()
	}
	s.pool.release(s.caller)
}

// countAsUsed counts the call in used again, even if the pool has no free slot. mu is held.
func (s *slot) countAsUsed() {
	s.reading = false
	s.limiter.reading--
	s.pool.used++
}

// startReading releases the slot while the body is read, if it is a slot of the pool calls. keepConnection is
// false if more than maxKeptReading bodies are being read: then the server may close the connection.
func (s *slot) startReading() (keepConnection bool) {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if s.pool != &s.limiter.calls {
		return true
	}
	s.reading = true
	s.pool.used--
	s.limiter.reading++
	return s.limiter.reading <= maxKeptReading
}

// endReading acquires a slot again. If the pool calls is full, an admin gets a slot of the pool reserved.
func (s *slot) endReading() error {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	switch {
	case !s.reading:
	case s.pool.used < s.pool.max:
		s.countAsUsed()
	case !s.admin:
		return s.pool.errFull
	default:
		if err := s.limiter.reserved.acquire(s.caller); err != nil {
			return err
		}
		s.releaseLocked()
		s.pool = &s.limiter.reserved
	}
	return nil
}

// moveToWaiting moves a call to the pool waiting, until the call ends. After an error the call has its old slot.
func (s *slot) moveToWaiting() error {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if err := s.limiter.waiting.acquire(s.caller); err != nil {
		return err
	}
	s.pool.release(s.caller)
	s.pool = &s.limiter.waiting
	return nil
}

// maxCalls returns the number of slots of all pools.
func (l *callLimiter) maxCalls() int {
	return l.calls.max + l.waiting.max + l.reserved.max + l.events.max
}

// usedSlots returns the number of used slots of each pool.
func (l *callLimiter) usedSlots() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return map[string]int{"calls": l.calls.used, "waiting": l.waiting.used, "reserved": l.reserved.used, "events": l.events.used}
}

// close makes begin return false. Env.drain calls it for the server of the framework.
func (l *callLimiter) close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

func (l *callLimiter) countInFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight
}

// waitUntilIdle returns when no call is under way, or with the error of ctx.
func (l *callLimiter) waitUntilIdle(ctx context.Context) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for l.countInFlight() > 0 {
		select {
		case <-poll.C:
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
