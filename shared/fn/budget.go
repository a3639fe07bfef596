package fn

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// What calls are charged, in bytes. The factors are measured (see
// TestMemoryStaysBoundedUnderAttack in package functions).
const (
	callCharge  = 8 << 10  // each call: its goroutine and buffers
	largeBody   = 16 << 10 // a longer body makes a call a large one
	bodyFactor  = 10       // what a body of up to a piece is turned into
	eventFactor = 4        // what a batch of events is turned into: it is not divided into pieces
	rowFactor   = 4        // a row of a page is read, converted and encoded
)

const (
	maxWaiting   = 512             // calls of one caller that wait for room or their turn
	turnWait     = 2 * time.Second // how long they do
	smallestPart = 20 << 20        // of one caller: the largest batch must fit
	mebibyte     = 1 << 20

	// leastMemoryMB leaves room for the largest batch.
	leastMemoryMB = 2 * smallestPart / mebibyte
)

// bodyCharge is what a body of n bytes costs on a route.
func (r *Route) bodyCharge(n int64) int64 {
	if r.batch {
		return eventFactor * n
	}
	return pieceCharge(n)
}

// pieceCharge is what a body of n bytes costs that is worked on in pieces.
func pieceCharge(n int64) int64 { return n + bodyFactor*min(n, Piece) }

// budget shares out the memory that calls hold. A call takes what it will need
// before it reads its body; rows of pages and answers are added as they are made.
//
// One caller holds at most SENDONCE_CALLER_SHARE of the whole, or the largest batch, and its
// large calls get half the processors; further ones wait for a moment with their bodies
// unread, and are then refused with 503. All large calls together leave a quarter to
// small ones, and these leave an eighth to admins and the trigger.
type budget struct {
	total, share int64
	largeAtOnce  int // of one caller

	mu      sync.Mutex
	used    int64
	callers map[string]*callerUse
	waiting []*turn // in order of arrival
}

// callerUse is what the calls of one caller hold.
type callerUse struct {
	calls   int64 // callCharge for each
	bytes   int64 // what they have taken beside that
	large   int   // large calls at work
	waiting int
}

// turn is a call that waits for room.
type turn struct {
	of      *holding
	bytes   int64
	large   bool
	granted chan struct{}
}

// newBudget is a budget of which one caller may hold the part callerShare.
func newBudget(megabytes int, callerShare float64) *budget {
	total := int64(megabytes) * mebibyte
	return &budget{
		total: total, share: max(int64(callerShare*float64(total)), min(smallestPart, total/2)), largeAtOnce: max(runtime.GOMAXPROCS(0)/2, 1), callers: map[string]*callerUse{},
	}
}

// holding is what one call holds. Its zero value holds nothing and may be released.
type holding struct {
	budget *budget
	caller string
	kept   bool // may use what is kept for admins and the trigger

	calls, bytes int64 // under budget.mu
	large        bool
}

// enter begins a call of a caller.
func (b *budget) enter(caller string, kept bool) (*holding, error) {
	h := &holding{budget: b, caller: caller, kept: kept}
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.use(caller)
	defer b.tidy(caller)
	if u.calls+u.bytes > b.share || b.used+callCharge > b.limit(h, false) {
		return nil, errNoMemory()
	}
	b.chargeCall(h, callCharge)
	return h, nil
}

func errNoMemory() *task.Error {
	return busy("this instance has no memory left for this call, try again")
}

// limit is how much may be in use after a call has taken more.
func (b *budget) limit(h *holding, large bool) int64 {
	switch {
	case h.kept:
		return b.total
	case large:
		return b.total * 3 / 4
	default:
		return b.total * 7 / 8
	}
}

// take charges the call n bytes, and waits for room. A large call also waits for its
// turn.
func (h *holding) take(ctx context.Context, n int64, large bool) error {
	b := h.budget
	t, err := b.join(&turn{of: h, bytes: n, large: large && !h.large})
	if t == nil {
		return err
	}
	timeout := time.NewTimer(turnWait)
	defer timeout.Stop()
	select {
	case <-t.granted:
		return nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return b.leave(ctx, t)
}

// join grants a turn at once, or returns it when the call has to wait. It refuses a call
// when too many of its caller wait, or when it could never be granted.
func (b *budget) join(t *turn) (*turn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.use(t.of.caller)
	defer b.tidy(t.of.caller)
	switch {
	case (!t.large || u.waiting == 0) && b.grant(t):
		return nil, nil
	case u.waiting >= maxWaiting || t.bytes > b.share:
		return nil, errNoMemory()
	}
	t.granted = make(chan struct{})
	u.waiting++
	b.waiting = append(b.waiting, t)
	return t, nil
}

// takeNow is take without a wait, for a call that has a connection in use.
func (h *holding) takeNow(n int64) error {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.tidy(h.caller)
	if !b.grant(&turn{of: h, bytes: n}) {
		return errNoMemory()
	}
	return nil
}

// leave ends the wait of a turn, which may have been granted meanwhile.
func (b *budget) leave(ctx context.Context, t *turn) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == t {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.use(t.of.caller).waiting--
			b.tidy(t.of.caller)
			if ctx.Err() != nil {
				return fmt.Errorf("wait for memory: %w", context.Cause(ctx))
			}
			return errNoMemory()
		}
	}
	return nil
}

// grant charges a turn if there is room; mu is held.
func (b *budget) grant(t *turn) bool {
	u := b.use(t.of.caller)
	if u.bytes+t.bytes > b.share || b.used+t.bytes > b.limit(t.of, t.large || t.of.large) || t.large && u.large >= b.largeAtOnce {
		return false
	}
	if t.large {
		u.large++
		t.of.large = true
	}
	b.charge(t.of, t.bytes)
	return true
}

// charge adds n bytes, or takes them back; mu is held.
func (b *budget) charge(h *holding, n int64) {
	h.bytes += n
	b.used += n
	b.use(h.caller).bytes += n
}

// chargeCall is charge for the call itself. A caller is refused further calls by the sum
// of both, but calls that wait leave its share to what it takes: the largest batch fits.
func (b *budget) chargeCall(h *holding, n int64) {
	h.calls += n
	b.used += n
	b.use(h.caller).calls += n
}

// use returns what a caller holds; mu is held, and tidy must follow a release.
func (b *budget) use(caller string) *callerUse {
	u := b.callers[caller]
	if u == nil {
		u = &callerUse{}
		b.callers[caller] = u
	}
	return u
}

func (b *budget) tidy(caller string) {
	if *b.use(caller) == (callerUse{}) {
		delete(b.callers, caller)
	}
}

// answer leaves the call charged for an answer of n bytes alone, whatever the
// limits, and ends its turn.
func (h *holding) answer(n int64) {
	if h == nil {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(h, n-h.bytes)
	if h.large {
		h.large = false
		b.use(h.caller).large--
	}
	b.wake()
	b.tidy(h.caller)
}

// release ends the call.
func (h *holding) release() {
	if h == nil {
		return
	}
	h.answer(0)
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chargeCall(h, -h.calls)
	b.tidy(h.caller)
}

// wake grants the turns that fit now, those of one caller in their order; mu is held.
func (b *budget) wake() {
	var passed map[string]bool
	left := b.waiting[:0]
	for _, t := range b.waiting {
		if !passed[t.of.caller] && b.grant(t) {
			b.use(t.of.caller).waiting--
			close(t.granted)
			continue
		}
		if passed == nil {
			passed = map[string]bool{}
		}
		passed[t.of.caller] = true
		left = append(left, t)
	}
	clear(b.waiting[len(left):])
	b.waiting = left
}

// inUse is how much is charged, for the metrics.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Reserve takes n bytes for what a function is about to load, and waits for room. They
// are given back when the call ends.
func (c *Call) Reserve(ctx context.Context, n int) error {
	return c.hold.take(ctx, int64(n), false)
}

// Unreserve gives back all that the call has taken, when it only waits from now on.
func (c *Call) Unreserve() { c.hold.answer(0) }

// limitMemory has the garbage collector keep to twice what calls may hold, unless
// GOMEMLIMIT says otherwise.
func limitMemory(cfg *Config) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(2 * int64(cfg.MemoryMB) * mebibyte)
	}
}
