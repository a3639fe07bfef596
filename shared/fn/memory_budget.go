package fn

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// chunkBytes is how many bytes of a batch are decoded and worked on at a time.
const chunkBytes = 512 << 10

// The memory that is charged for a call, in bytes. The factors are measured (see
// TestMemoryStaysBoundedUnderAttack in package functions/e2e).
const (
	callCharge  = 8 << 10  // each call: its goroutine and buffers
	largeBody   = 16 << 10 // a longer body makes a call a large one
	bodyFactor  = 10       // decoded values of a body: for each byte, but only of the first chunkBytes
	eventFactor = 4        // a body that may be a batch of events, with its decoded values: for each byte
	rowFactor   = 4        // a row of a page, which is read, converted and encoded: for each byte

	largeEvents = 2 * mebibyte // a call for events that reserves more than this at once is a large one
)

const (
	maxMemoryWaiters = 512              // calls of one caller that may wait for memory at once
	memoryWait       = 2 * time.Second  // how long a call waits at most
	eventWait        = 20 * time.Second // how long a call for events waits at most; refused events are delivered again

	mebibyte = 1 << 20
	minShare = settings.MinMemoryMB / 2 * mebibyte // the smallest share of one caller: enough for the largest batch
)

// chunkCharge returns the charge for a body of n bytes that is decoded in chunks.
func chunkCharge(n int64) int64 { return n + bodyFactor*min(n, chunkBytes) }

// memoryBudget limits the memory of all calls. A call reserves memory for its body before it reads
// the body, and for the decoded values before it decodes them; for a large body it reserves both at
// once. Rows of pages are charged when they are read. A response is charged when it is encoded, even
// above the limits. A call that gets no memory within memoryWait is refused with 503.
//
//   - One caller reserves at most SENDONCE_CALLER_SHARE of the budget, or minShare if that is more.
//   - Calls with a body longer than largeBody and calls of Paged routes are large. Of one caller, at
//     most largeAtOnce large calls run at once; further ones wait. A call that waits for its commit
//     does not count.
//   - A large call gets memory only while all calls use at most three quarters of the budget; a small
//     call, seven eighths; a call of an admin or of the trigger, the whole budget.
//   - Calls for events work for many callers, but have one caller, the trigger. Together they may use
//     half of the budget, or the share of a caller if that is more, and each waits up to eventWait. Such a
//     call is large only if it reserves more than largeEvents at once, and only until its events are
//     decoded.
type memoryBudget struct {
	total, share int64
	largeAtOnce  int // of one caller: half of the processors, but at least 1

	mu      sync.Mutex
	used    int64
	callers map[string]*callerUse
	waiting []*reservation // in order of arrival
}

// callerUse is the memory of the calls of one caller.
type callerUse struct {
	base    int64 // bytes: callCharge for each call
	extra   int64 // bytes that are charged in addition
	large   int   // large calls that run
	waiting int   // calls that wait for memory
}

// reservation is memory that a call needs, or the continuation of a paused call.
type reservation struct {
	call    *callMemory
	bytes   int64
	large   bool          // the call becomes a large one
	resumes bool          // the call is paused and holds its memory; bytes is 0
	granted chan struct{} // closed when a reservation in the queue is granted
}

// newMemoryBudget returns a budget. callerShare is the part that one caller may use, at most 1.
func newMemoryBudget(megabytes int, callerShare float64) *memoryBudget {
	total := int64(megabytes) * mebibyte
	return &memoryBudget{
		total: total, share: max(int64(callerShare*float64(total)), min(minShare, total/2)), largeAtOnce: max(runtime.GOMAXPROCS(0)/2, 1), callers: map[string]*callerUse{},
	}
}

// callMemory is the memory of one call. nil is the memory of a call that is charged nothing; resize and release then do
// nothing.
type callMemory struct {
	budget     *memoryBudget
	caller     string
	privileged bool // may use the whole budget: a call of an admin or the trigger
	event      bool // a call for events

	base, extra int64 // as in callerUse; guarded by budget.mu
	large       bool
	paused      bool // the call was large when it called pause
}

// enter charges a new call to its caller. privileged is true for an admin; event is as in callMemory.
func (b *memoryBudget) enter(caller string, privileged, event bool) (*callMemory, error) {
	m := &callMemory{budget: b, caller: caller, privileged: privileged || event, event: event}
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.usage(caller)
	defer b.dropUnused(caller)
	if u.base+u.extra > b.shareOf(m) || b.used+callCharge > b.limit(m, false) {
		return nil, errNoMemory()
	}
	b.chargeCall(m, callCharge)
	return m, nil
}

func errNoMemory() *task.Error {
	return task.Busy("this instance has no memory left for this call or its caller, try again")
}

// limit returns how many bytes of the budget may be in use, by all calls, after a reservation of this call.
func (b *memoryBudget) limit(m *callMemory, large bool) int64 {
	switch {
	case m.privileged:
		return b.total
	case large:
		return b.total * 3 / 4
	default:
		return b.total * 7 / 8
	}
}

// shareOf returns how many bytes all calls of the caller of this call may use.
func (b *memoryBudget) shareOf(m *callMemory) int64 {
	if m.event {
		return max(b.share, b.total/2)
	}
	return b.share
}

// reserve charges the call n more bytes. It waits until there is room, at most for memoryWait, or
// eventWait for events. If large, it also waits until fewer than largeAtOnce large calls of the caller
// run. A call for events is large if n is more than largeEvents, whatever large is.
func (m *callMemory) reserve(ctx context.Context, n int64, large bool) error {
	if m.event {
		large = n > largeEvents
	}
	return m.await(ctx, &reservation{call: m, bytes: n, large: large && !m.large})
}

// await waits until r is granted.
func (m *callMemory) await(ctx context.Context, r *reservation) error {
	b := m.budget
	r, err := b.grantOrQueue(r)
	if r == nil {
		return err
	}
	wait := memoryWait
	if m.event {
		wait = eventWait
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case <-r.granted:
		return nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return b.stopWaiting(ctx, r)
}

// grantOrQueue grants r at once, or queues and returns r. It returns an error if too many calls of
// the caller wait, or if r needs more than the caller's share.
func (b *memoryBudget) grantOrQueue(r *reservation) (queued *reservation, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.usage(r.call.caller)
	defer b.dropUnused(r.call.caller)
	switch {
	case (!r.large || u.waiting == 0 || r.resumes) && b.grant(r):
		return nil, nil
	case u.waiting >= maxMemoryWaiters || r.bytes > b.shareOf(r.call):
		return nil, errNoMemory()
	}
	r.granted = make(chan struct{})
	u.waiting++
	b.waiting = append(b.waiting, r)
	return r, nil
}

// tryReserve is reserve without a wait.
func (m *callMemory) tryReserve(n int64) error {
	b := m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.dropUnused(m.caller)
	if !b.grant(&reservation{call: m, bytes: n}) {
		return errNoMemory()
	}
	return nil
}

// stopWaiting removes r from the queue. It returns nil if r was granted meanwhile.
func (b *memoryBudget) stopWaiting(ctx context.Context, r *reservation) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == r {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.usage(r.call.caller).waiting--
			b.grantWaiting() // calls of the caller that arrived later may fit
			b.dropUnused(r.call.caller)
			if ctx.Err() != nil {
				return fmt.Errorf("wait for memory: %w", context.Cause(ctx))
			}
			return errNoMemory()
		}
	}
	return nil
}

// grant charges r if there is room, and, for r.large, if fewer than largeAtOnce large calls of the caller run. It
// reports whether it has; mu is held.
func (b *memoryBudget) grant(r *reservation) bool {
	u := b.usage(r.call.caller)
	noRoom := u.extra+r.bytes > b.shareOf(r.call) || b.used+r.bytes > b.limit(r.call, r.large || r.call.large)
	if noRoom && !r.resumes || r.large && u.large >= b.largeAtOnce {
		return false
	}
	if r.large {
		u.large++
		r.call.large = true
	}
	b.charge(r.call, r.bytes)
	return true
}

// charge adds n bytes, which may be negative; mu is held.
func (b *memoryBudget) charge(m *callMemory, n int64) {
	m.extra += n
	b.used += n
	b.usage(m.caller).extra += n
}

// chargeCall is charge for the call itself; mu is held. Only enter counts these charges for the
// caller's share: otherwise the waiting calls of a caller could prevent the caller's largest batch.
func (b *memoryBudget) chargeCall(m *callMemory, n int64) {
	m.base += n
	b.used += n
	b.usage(m.caller).base += n
}

// usage returns the entry of a caller, or adds one; mu is held. Call dropUnused if the entry may be unused.
func (b *memoryBudget) usage(caller string) *callerUse {
	u := b.callers[caller]
	if u == nil {
		u = &callerUse{}
		b.callers[caller] = u
	}
	return u
}

// dropUnused removes the entry of a caller without calls; mu is held.
func (b *memoryBudget) dropUnused(caller string) {
	if *b.usage(caller) == (callerUse{}) {
		delete(b.callers, caller)
	}
}

// resize sets extra to n bytes, even above the limits. The call is no longer a large one.
func (m *callMemory) resize(n int64) {
	if m == nil {
		return
	}
	b := m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(m, n-m.extra)
	m.endLarge()
	b.grantWaiting()
	b.dropUnused(m.caller)
}

// endLarge lets another large call of the caller run; mu is held.
func (m *callMemory) endLarge() {
	if m.large {
		m.large = false
		m.budget.usage(m.caller).large--
	}
}

// pause lets other large calls of the caller run while this call waits for the database, or while a page
// makes calls of the API. The paused call keeps its memory.
func (m *callMemory) pause() {
	b := m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	m.paused = m.large
	m.endLarge()
	b.grantWaiting()
}

// resume waits until a paused call may run again, at most for memoryWait.
func (m *callMemory) resume(ctx context.Context) error {
	if !m.paused {
		return nil
	}
	return m.await(ctx, &reservation{call: m, large: !m.event && !m.large, resumes: true})
}

// release releases all memory of a call that has ended.
func (m *callMemory) release() {
	if m == nil {
		return
	}
	m.budget.mu.Lock()
	m.budget.chargeCall(m, -m.base)
	m.budget.mu.Unlock()
	m.resize(0)
}

// grantWaiting grants the waiting calls that fit now, those of one caller in order of arrival. But a call that resumes
// does not wait for earlier calls that need memory: it may hold the memory that they wait for. mu is held.
func (b *memoryBudget) grantWaiting() {
	var blocked map[string]bool // callers with an earlier call that still waits
	left := b.waiting[:0]
	for _, r := range b.waiting {
		if (!blocked[r.call.caller] || r.resumes) && b.grant(r) {
			b.usage(r.call.caller).waiting--
			close(r.granted)
			continue
		}
		if blocked == nil {
			blocked = map[string]bool{}
		}
		blocked[r.call.caller] = true
		left = append(left, r)
	}
	clear(b.waiting[len(left):])
	b.waiting = left
}

// inUse returns the bytes that are charged, for the metrics.
func (b *memoryBudget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// gcPercent lets the heap grow to five times the live data before the next collection. The live data is
// a few megabytes. With Go's default of 100, a submission costs 15 to 30 % more CPU time.
const gcPercent = 400

// limitMemory sets gcPercent unless GOGC is set, and a memory limit of twice the budget of calls
// unless GOMEMLIMIT is set.
func limitMemory(cfg *settings.Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(2 * int64(cfg.MemoryMB) * mebibyte)
	}
}
