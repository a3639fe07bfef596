package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Tick wakes subject at once and then at every multiple of interval until ctx ends. The Nats-Msg-Id of each later
// tick consists of name and the time of the tick, so the stream stores only one of the ticks that all triggers
// publish at that time. Tick uses no message schedules: NATS may lose a schedule, and servers before 2.12 have
// none.
func (b *Bus) Tick(ctx context.Context, conn *Connection, subject, name string, interval time.Duration) {
	b.Wake(subject, 1)
	for {
		at := time.Now().Truncate(interval).Add(interval)
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, wakeTimeout)
		_, err := conn.js.PublishMsg(bounded, &nats.Msg{Subject: subject, Data: []byte("1")},
			jetstream.WithMsgID(fmt.Sprintf("tick-%s-%d", name, at.Unix())), jetstream.WithExpectStream(StreamWake))
		cancel()
		if err != nil && ctx.Err() == nil {
			b.keepUnsent(signal{subject: subject})
			b.log.Warn("cannot publish a safety tick", "subject", subject, "error", err)
		}
	}
}

// CheckWakeUps publishes a test message, which wakes no function, to the stream WAKE. It returns an error if the stream
// does not store the message.
func (conn *Connection) CheckWakeUps(ctx context.Context) error {
	ctx, cancel := conn.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	if _, err := conn.js.Publish(ctx, wakePrefix+"check", []byte("check"), jetstream.WithExpectStream(StreamWake)); err != nil {
		return fmt.Errorf("the stream WAKE stores no wake-ups: if the disk of nats-server was full, free it and restart nats-server: %w", err)
	}
	return nil
}
