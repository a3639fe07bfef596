package trigger

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const repeatDelayMax = 10 * time.Second // before the trigger publishes a failed wake-up again

// repeatIfReplaced schedules a repeat of a failed wake-up if a newer wake-up was delivered since, or if that is
// unknown. meta is the metadata of the failed wake-up. At most one repeat of a route is pending. The repeat is
// published after the delay, which is reduced to repeatDelayMax if it is longer, but not before Retry-After. When
// the trigger ends, the repeat is published at once. If a trigger is killed, its repeat is lost. But each trigger
// that starts wakes the functions of all routes with a safety tick.
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
