package fn

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
)

// framesAtOnce and readsAtOnce are how many frames, and reads of events, of one caller
// are processed at once in one process. Frames mostly wait for the database, reads
// mostly compute.
const framesAtOnce = 8

func readsAtOnce() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// callerSemaphores limits how much work of one caller is done at once; further work waits
// in order of arrival. So the streams and sockets of one caller leave processors to others.
// Nothing is refused: each stream waits for one slot at most, and callLimiter bounds the
// streams. Release a slot before anything is sent to a client, as a slow client would
// otherwise delay the caller's other clients.
type callerSemaphores struct {
	atOnce int64

	mu       sync.Mutex
	byCaller map[string]*callerSemaphore // by name; no entry for a caller without work
}

type callerSemaphore struct {
	free  *semaphore.Weighted
	users int // hold a slot or wait for one; guarded by callerSemaphores.mu
}

func newCallerSemaphores(atOnce int) *callerSemaphores {
	return &callerSemaphores{atOnce: int64(atOnce), byCaller: map[string]*callerSemaphore{}}
}

// acquire waits for a slot of the caller, or for the end of ctx. done releases the slot.
func (t *callerSemaphores) acquire(ctx context.Context, caller string) (done func(), err error) {
	t.mu.Lock()
	s := t.byCaller[caller]
	if s == nil {
		s = &callerSemaphore{free: semaphore.NewWeighted(t.atOnce)}
		t.byCaller[caller] = s
	}
	s.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(t.byCaller, caller)
		}
	}
	if err := s.free.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { s.free.Release(1); leave() }, nil
}

// AcquireRead waits until few enough of the caller's streams and sockets read events. done
// releases the slot.
func (c *Call) AcquireRead(ctx context.Context) (done func(), err error) {
	return c.env.reads.acquire(ctx, c.Caller.QuotaName())
}
