package bus

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// subscribe calls the handler received for each message of a core subject until Close. It calls the function subscribed whenever the
// server has confirmed the subscription: the first time and after each outage. subscribe does not wait for the
// connection.
func (b *Bus) subscribe(subject string, received nats.MsgHandler, subscribed func()) {
	if b == nil {
		return
	}
	b.start()
	b.spawn(func() { b.runSubscription(subject, received, subscribed) })
}

func (b *Bus) runSubscription(subject string, received nats.MsgHandler, subscribed func()) {
	var owner *nats.Conn // the connection of the subscription; both survive reconnects
	for b.closing.Err() == nil {
		conn, err := b.AwaitConnection(b.closing)
		if err != nil {
			return
		}
		if owner != conn.nats() {
			if _, err = conn.nats().Subscribe(subject, received); err == nil {
				owner = conn.nats()
			} else if !errors.Is(err, nats.ErrConnectionClosed) {
				b.log.Error("cannot subscribe", "subject", subject, "error", err)
				return
			}
		}
		if owner == conn.nats() && conn.awaitFlush() {
			subscribed()
		}
		<-conn.ctx.Done()
	}
}

// awaitFlush waits until the server has received everything written so far. It returns false if the
// connection ends first.
func (conn *Connection) awaitFlush() bool {
	for !conn.Lost() {
		if conn.nats().FlushTimeout(writeTimeout) == nil {
			return !conn.Lost()
		}
		select {
		case <-time.After(redialWait):
		case <-conn.ctx.Done():
		}
	}
	return false
}
