package fn

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
)

// framesAtOnce and readsAtOnce are how many frames, and reads of events, of one caller
// are worked on at once in one process. Frames mostly wait for the database, reads
// mostly compute.
const framesAtOnce = 8

func readsAtOnce() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// callerSemaphores limits how much work of one caller is done at once; the rest waits in order of
// arrival. So however many streams and sockets a caller has, they leave the processors to
// others. Nothing is refused: what waits is bounded by the places of the caller's
// streams (see gate), of which each waits for one turn at most. A turn must end
// before something is sent to a client: the caller's other clients would wait for it.
type callerSemaphores struct {
	atOnce int64

	mu       sync.Mutex
	byCaller map[string]*callerSemaphore // by name; no entry for a caller without work
}

type callerSemaphore struct {
	free  *semaphore.Weighted
	users int // that have a turn or wait for one; under turns.mu
}

func newCallerSemaphores(atOnce int) *callerSemaphores {
	return &callerSemaphores{atOnce: int64(atOnce), byCaller: map[string]*callerSemaphore{}}
}

// acquire waits for a turn of the caller, or for the end of ctx. done ends the turn.
func (t *callerSemaphores) acquire(ctx context.Context, caller string) (done func(), err error) {
	t.mu.Lock()
	of := t.byCaller[caller]
	if of == nil {
		of = &callerSemaphore{free: semaphore.NewWeighted(t.atOnce)}
		t.byCaller[caller] = of
	}
	of.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(t.byCaller, caller)
		}
	}
	if err := of.free.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { of.free.Release(1); leave() }, nil
}

// AcquireRead waits until few enough of the caller's streams and sockets read events. The
// turn lasts until done is called.
func (c *Call) AcquireRead(ctx context.Context) (done func(), err error) {
	return c.env.reads.acquire(ctx, c.Caller.Name)
}
