package bus

import (
	"strings"
	"time"
)

// send waits for the first attempt to connect, publishes and flushes. Without the flush, a message that is
// written to a dead connection would be lost unnoticed.
func (b *Bus) send(s signal, body []byte) {
	<-b.attempted
	b.mu.Lock()
	conn := b.current
	b.mu.Unlock()
	if conn == nil || conn.nats().Publish(s.subject, body) != nil || conn.nats().FlushTimeout(writeTimeout) != nil {
		b.keepUnsent(s)
	}
}

const (
	maxUnsent   = 10_000          // bounds the memory for one outage; the safety tick covers the rest
	resendDelay = 2 * time.Second // before another try on a live connection
)

func (b *Bus) keepUnsent(s signal) {
	b.failedSends.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	// Callers choose the names of queues, and there may be many schedules: these must not take the place of the other signals,
	// of which there are few.
	many := strings.HasPrefix(s.subject, queuePrefix) || !s.at.IsZero()
	if !many || len(b.unsent) < maxUnsent {
		b.unsent[s] = true
	}
	if b.current != nil && !b.closed {
		// The Bus has reconnected meanwhile, or the server refuses the message for now.
		time.AfterFunc(resendDelay, b.resendUnsent)
	}
}
