package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

// repeat publishes a failed wake-up again if a newer wake-up of the subject has replaced it in WAKE: NATS does not
// redeliver it then. The call for the newer wake-up may have found nothing to do, because the failed call still
// held the work.
type repeat struct {
	mu    sync.Mutex
	timer *time.Timer // of the pending repeat; nil = none
}

// repeatIfReplaced schedules a repeat of a failed wake-up, whose metadata is meta, if a newer wake-up was delivered
// since, or if that is unknown. At most one repeat is pending. It is published after the delay, or earlier when the
// trigger ends. A killed trigger loses it, but a trigger that starts wakes the functions of all routes with a safety
// tick.
func (t *Trigger) repeatIfReplaced(ctx context.Context, js jetstream.JetStream, r *route, meta *jetstream.MsgMetadata, v verdict, delay time.Duration) {
	if r.Stream != bus.StreamWake {
		return
	}
	consumer, err := js.Consumer(ctx, r.Stream, r.Durable)
	if err == nil && consumer.CachedInfo().Delivered.Stream <= meta.Sequence.Stream {
		return // NATS redelivers this wake-up, or delivers a newer one
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
