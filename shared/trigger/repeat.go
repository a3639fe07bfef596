package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

// repeat publishes a failed wake-up again if NATS does not redeliver it: the stream WAKE keeps only the newest wake-up
// of a subject, and a replaced one is not delivered again. The call for the newer one may have found nothing to do,
// because the call that fails now had already claimed the work.
type repeat struct {
	mu    sync.Mutex
	timer *time.Timer // of the pending repeat; nil = none
}

// repeatIfReplaced schedules another wake-up if a newer one was delivered since the failed one, which has this
// metadata, or if that is unknown. It is published after the delay, or earlier when the trigger ends. While a repeat
// is pending, no further one is scheduled. If the trigger is killed, the repeat is lost; but a trigger that starts
// wakes the functions of all routes with a safety tick.
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
