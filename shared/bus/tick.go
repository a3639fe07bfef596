package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// tick wakes the function of r at once and then every r.TickInterval until ctx ends. All triggers
// publish a tick under the same id, so the stream stores one. Ticks are not stored in advance, where
// they could be evicted.
func (t *Trigger) tick(ctx context.Context, l *connection, r *route) {
	t.bus.Wake(r.Filters[0], 1)
	t.forgetSchedule(ctx, l, r)
	for {
		at := time.Now().Truncate(r.TickInterval).Add(r.TickInterval)
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, scheduleTimeout)
		_, err := l.js.PublishMsg(bounded, &nats.Msg{Subject: r.Filters[0], Data: []byte("1")},
			jetstream.WithMsgID(fmt.Sprintf("tick-%s-%d", r.Durable, at.Unix())))
		cancel()
		if err != nil && ctx.Err() == nil {
			t.bus.keepUnsent(wakeUp{subject: r.Filters[0]})
			t.bus.log.Warn("tick", "route", r.Durable, "error", err)
		}
	}
}

// forgetSchedule removes the repeating schedule of earlier versions.
func (t *Trigger) forgetSchedule(ctx context.Context, l *connection, r *route) {
	ctx, cancel := context.WithTimeout(ctx, scheduleTimeout)
	defer cancel()
	s, err := l.js.Stream(ctx, r.Stream)
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSubject(scheduleName(r.Filters[0], "tick")))
	}
	if err != nil && ctx.Err() == nil {
		t.bus.log.Warn("remove the tick of an earlier version", "route", r.Durable, "error", err)
	}
}
