package trigger

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const repeatDelayMax = 10 * time.Second // before the trigger publishes a failed wake-up again

// repeatIfReplaced schedules a repeat, a new wake-up for a failed one, if NATS has delivered a newer wake-up since, or if
// the query of NATS fails. meta is the metadata of the failed wake-up. At most one repeat of a route is pending. It is
// published after delay or repeatDelayMax, whichever is shorter, but not before Retry-After. When Run ends, the repeat
// is published at once. If the trigger is killed, the repeat is lost, but each trigger that starts wakes the functions
// of all routes with a safety tick.
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
