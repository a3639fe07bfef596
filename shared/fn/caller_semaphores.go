package fn

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
)

// framesAtOnce is how many frames of one caller are handled at once. Frames mostly wait for the database.
const framesAtOnce = 8

// readsAtOnce is how many reads of events of one caller run at once. Reads mostly use the processor.
func readsAtOnce() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// callerSemaphores has a semaphore for each caller, so that the streams and sockets of one caller
// leave processors to other callers. Further work waits in order of arrival, and the queue is not
// limited: each stream waits for at most one slot, and callLimiter limits the streams. Release a slot
// before anything is sent to a client, as a slow client would delay the caller's other clients.
//
// Env.anonymousSlots has a semaphore for each address of visitors who are not logged in. Their slots
// are kept until the page is sent.
type callerSemaphores struct {
	atOnce int64

	mu       sync.Mutex
	byCaller map[string]*callerSemaphore // no entry for a caller without work
}

type callerSemaphore struct {
	free  *semaphore.Weighted
	users int // that hold a slot or wait for one; guarded by callerSemaphores.mu
}

func newCallerSemaphores(atOnce int) *callerSemaphores {
	return &callerSemaphores{atOnce: int64(atOnce), byCaller: map[string]*callerSemaphore{}}
}

// acquire waits for a slot of the caller, or for the end of ctx. done releases the slot.
func (c *callerSemaphores) acquire(ctx context.Context, caller string) (done func(), err error) {
	c.mu.Lock()
	s := c.byCaller[caller]
	if s == nil {
		s = &callerSemaphore{free: semaphore.NewWeighted(c.atOnce)}
		c.byCaller[caller] = s
	}
	s.users++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(c.byCaller, caller)
		}
	}
	if err := s.free.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { s.free.Release(1); leave() }, nil
}
