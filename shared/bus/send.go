package bus

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// send waits for the first attempt to connect, publishes, and waits until the stream WAKE has stored the message or, if no
// stream has its subject, until the server has received it. Without this wait, nothing would show that a message was lost,
// for example on a dead connection or while the stream had no leader.
func (b *Bus) send(s signal, body []byte) {
	<-b.attempted
	b.mu.Lock()
	conn := b.current
	b.mu.Unlock()
	if conn == nil || b.sendOver(conn, s.subject, body) != nil {
		b.keepUnsent(s)
	}
}

// sendOver publishes over one connection. If the Bus closes meanwhile, sendOver may publish the message a second time, which is
// harmless, and waits only for the server.
func (b *Bus) sendOver(conn *Connection, subject string, body []byte) error {
	isStored := subject != subjectCallers && !isForPollers(subject)
	if isStored && b.closing.Err() == nil {
		ctx, cancel := conn.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		_, err := conn.js.Publish(ctx, subject, body, jetstream.WithExpectStream(StreamWake), jetstream.WithRetryAttempts(0))
		if err == nil || b.closing.Err() == nil {
			return err
		}
	}
	if err := conn.nats().Publish(subject, body); err != nil {
		return err
	}
	return conn.nats().FlushTimeout(writeTimeout)
}

const (
	maxUnsent   = 10_000          // bounds the memory for one outage; the safety tick covers the rest
	resendDelay = 2 * time.Second // before another try on a live connection
)

func (b *Bus) keepUnsent(s signal) {
	b.failedSends.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	// Callers choose the names of queues, and there may be many schedules, so only the other signals, of which there are
	// few, are always kept.
	many := isForPollers(s.subject) || !s.at.IsZero()
	if !many || len(b.unsent) < maxUnsent {
		b.unsent[s] = true
	}
	if b.current != nil && !b.closed {
		// The Bus has reconnected meanwhile, or the server refuses the message for now.
		time.AfterFunc(resendDelay, b.resendUnsent)
	}
}

// isForPollers reports whether a wake-up is for the sender apps that poll a queue, and not for a function.
func isForPollers(subject string) bool {
	return strings.HasPrefix(subject, queuePrefix) && subject != WakeWeChat
}
