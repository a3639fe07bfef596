package sender

import (
	"context"
	"sync"
	"time"
)

// pace lets callers through one by one, at least interval apart, in the order
// in which they came.
type pace struct {
	interval time.Duration
	mu       sync.Mutex
	next     time.Time
}

// wait returns at the caller's turn, or with the reason why ctx ended first.
func (p *pace) wait(ctx context.Context) error {
	sleep(ctx, time.Until(p.turn()))
	return context.Cause(ctx)
}

func (p *pace) turn() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := later(p.next, time.Now())
	p.next = at.Add(p.interval)
	return at
}

// hold lets nobody through for d who has not got a turn yet.
func (p *pace) hold(d time.Duration) {
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
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
