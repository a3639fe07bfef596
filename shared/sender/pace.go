package sender

import (
	"context"
	"sync"
	"time"
)

const (
	minPause = time.Second / 2  // between the starts of claims that return no tasks, and after the first failed call
	maxPause = 10 * time.Second // the longest pause: it doubles with each failed call

	// callTimeout limits a call with all its tries. It is longer than claimWaitSeconds. If Retry-After is longer than
	// what is left of callTimeout, the client returns the error at once: a proxy cannot stop the sender with a long
	// Retry-After.
	callTimeout = time.Minute
)

// pace limits a rate: each call of wait gets a turn, in the order of the calls and at least interval after the turn
// before.
type pace struct {
	interval time.Duration
	mu       sync.Mutex
	next     time.Time
}

// wait returns nil at the caller's turn, or the cause of the end of ctx if ctx ends first.
func (p *pace) wait(ctx context.Context) error {
	sleep(ctx, time.Until(p.nextTurn()))
	return context.Cause(ctx)
}

func (p *pace) nextTurn() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := later(p.next, time.Now())
	p.next = at.Add(p.interval)
	return at
}

// delay postpones the turns of later callers until d from now. It does not postpone callers that already wait.
func (p *pace) delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = later(p.next, time.Now().Add(d))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
