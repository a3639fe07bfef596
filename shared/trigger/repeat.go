package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

// repeat publishes a wake-up again that failed and that NATS does not redeliver: the stream WAKE keeps only the newest
// wake-up of a subject, and replacing one ends its delivery. The call for the newer one may have succeeded without
// doing anything, because the call that failed later still held the work.
type repeat struct {
	mu    sync.Mutex
	timer *time.Timer // of the pending repeat; nil = none
}

// repeatIfReplaced publishes another wake-up after a delay, at the latest when the trigger ends, if a newer one was
// delivered since the one with this metadata. While a repeat is pending, no further one is scheduled. A trigger that
// was killed wakes the functions of all routes when it starts again.
func (t *Trigger) repeatIfReplaced(ctx context.Context, js jetstream.JetStream, r *route, meta *jetstream.MsgMetadata, v verdict, delay time.Duration) {
	if r.Stream != bus.StreamWake {
		return
	}
	consumer, err := js.Consumer(ctx, r.Stream, r.Durable)
	if err == nil && consumer.CachedInfo().Delivered.Stream <= meta.Sequence.Stream {
		return // NATS redelivers this one, or delivers a newer one
	}
	r.repeat.mu.Lock()
	defer r.repeat.mu.Unlock()
	if r.repeat.timer == nil {
		r.repeat.timer = time.AfterFunc(max(min(delay, repeatDelayMax), v.retryAfter), func() { t.repeatNow(r) })
	}
}

// repeatNow publishes the wake-up of a pending repeat.
func (t *Trigger) repeatNow(r *route) {
	r.repeat.mu.Lock()
	defer r.repeat.mu.Unlock()
	if r.repeat.timer != nil {
		r.repeat.timer.Stop()
		r.repeat.timer = nil
		t.bus.Wake(r.Filters[0], 1)
	}
}
