package bus

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sendonce/sendonce/shared/loglimit"
)

// The shortest interval between two wake-ups that one process sends to one subject.
const (
	wakeInterval      = 20 * time.Millisecond // to a function: each wake-up is a call
	queueWakeInterval = 5 * time.Millisecond  // to a queue, or to the function wechat, whose subject is that of its queue: tasks wait
)

// Wake publishes a wake-up to subject. n is how many tasks, messages or events became due; less than 1 counts
// as 1. Wake neither blocks nor fails. The first wake-up is sent at once; the wake-ups of the next 20 ms (5 ms
// for a queue) are sent as one, with the sum of n. A wake-up that cannot be sent, or that the stream WAKE should store
// but does not acknowledge, counts in FailedSends. One wake-up with n = 1 is tried later for all failed wake-ups of a
// subject, until Close; of the wake-ups of pollers, at most maxUnsent subjects are remembered.
func (b *Bus) Wake(subject string, n int) {
	if b == nil {
		return
	}
	b.start()
	n = max(n, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		b.failedSends.Add(1)
		return
	}
	_, throttled := b.pending[subject]
	b.pending[subject] += n
	if !throttled {
		b.background.Go(func() { b.throttle(subject) })
	}
}

// throttle sends the wake-ups of one subject, at most one in each interval, and returns after an interval in which Wake was not
// called for it.
func (b *Bus) throttle(subject string) {
	interval := wakeInterval
	if strings.HasPrefix(subject, queuePrefix) {
		interval = queueWakeInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		b.mu.Lock()
		n := b.pending[subject]
		if b.pending[subject] = 0; n == 0 {
			delete(b.pending, subject)
		}
		b.mu.Unlock()
		if n == 0 {
			return
		}
		b.send(signal{subject: subject}, strconv.AppendInt(nil, int64(n), 10))
		select {
		case <-tick.C:
		case <-b.closing.Done():
		}
	}
}

// OnQueue calls notify whenever any process, this process included, wakes a queue (QueueSubject), until
// Close. It calls subscribed after each (re)subscription, since a wake-up that is published while
// there is no subscription is lost. Neither callback may block.
func (b *Bus) OnQueue(notify func(queue string, n int), subscribed func()) {
	var lines loglimit.Limit
	b.subscribe(queuePrefix+"*", func(m *nats.Msg) {
		queue, ok := unescapeToken(m.Subject[len(queuePrefix):])
		n, err := strconv.Atoi(string(m.Data))
		if !ok || err != nil || n < 1 {
			if unlogged, logNow := lines.Next(); logNow {
				b.log.Warn("ignored an invalid wake-up", "subject", m.Subject, "unlogged", unlogged)
			}
			return
		}
		notify(queue, n)
	}, subscribed)
}
