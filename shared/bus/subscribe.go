package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// subscribe calls received for each message of a core subject until stop or Close. It calls subscribed
// whenever the server has confirmed the subscription: the first time and after each outage. subscribe does
// not wait for the connection.
func (b *Bus) subscribe(subject string, received nats.MsgHandler, subscribed func()) (stop func()) {
	if b == nil {
		return func() {}
	}
	b.start()
	ctx, cancel := context.WithCancel(b.closing)
	b.spawn(func() { b.runSubscription(ctx, subject, received, subscribed) })
	return cancel
}

func (b *Bus) runSubscription(ctx context.Context, subject string, received nats.MsgHandler, subscribed func()) {
	var owner *nats.Conn // the connection of sub; both survive reconnects
	var sub *nats.Subscription
	for ctx.Err() == nil {
		conn, err := b.AwaitConnection(ctx)
		if err != nil {
			break
		}
		if owner != conn.nats() {
			if sub, err = conn.nats().Subscribe(subject, received); err == nil {
				owner = conn.nats()
			} else if !errors.Is(err, nats.ErrConnectionClosed) {
				b.log.Error("cannot subscribe", "subject", subject, "error", err)
				return
			}
		}
		if owner == conn.nats() && b.awaitFlush(ctx, conn) {
			subscribed()
		}
		select {
		case <-conn.ctx.Done():
		case <-ctx.Done():
		}
	}
	if sub == nil {
		return
	}
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.log.Warn("cannot unsubscribe", "subject", subject, "error", err)
	}
}

// awaitFlush waits until the server has received everything written so far. It returns false if the
// connection or ctx ends first.
func (b *Bus) awaitFlush(ctx context.Context, conn *Connection) bool {
	ctx, cancel := conn.UntilLost(ctx)
	defer cancel()
	for ctx.Err() == nil {
		if conn.nats().FlushTimeout(writeTimeout) == nil {
			return ctx.Err() == nil
		}
		select {
		case <-time.After(redialWait):
		case <-ctx.Done():
		}
	}
	return false
}
