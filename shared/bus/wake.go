package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The shortest interval between two wake-ups of one subject by one process.
const (
	wakeInterval      = 20 * time.Millisecond // of a function: each wake-up is a call
	queueWakeInterval = 5 * time.Millisecond  // of a queue, for which pollers wait
)

// Wake publishes to subject that n things became due. It neither blocks nor fails. The first call is sent
// at once; calls within the next 20 ms (5 ms for a queue) are sent together. Wake-ups that cannot be sent
// count in FailedSends and are sent as one after the next connect. n below 1 counts as 1.
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
	_, debouncing := b.pending[subject]
	b.pending[subject] += n
	if !debouncing {
		b.background.Go(func() { b.debounce(subject) })
	}
}

// debounce sends the wake-ups of one subject until an interval passes without any.
func (b *Bus) debounce(subject string) {
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
		b.send(wakeUp{subject: subject}, strconv.AppendInt(nil, int64(n), 10))
		select {
		case <-tick.C:
		case <-b.closing.Done():
		}
	}
}

// send publishes and flushes. Without the flush, a message that is written to a dead connection would be lost
// unnoticed.
func (b *Bus) send(w wakeUp, body []byte) {
	<-b.attempted
	b.mu.Lock()
	conn := b.current
	b.mu.Unlock()
	if conn == nil || conn.nats().Publish(w.subject, body) != nil || conn.nats().FlushTimeout(writeTimeout) != nil {
		b.keepUnsent(w)
	}
}

// wakeUp is a wake-up, a schedule or a caller notification, to be sent again if it could not be sent.
type wakeUp struct {
	subject string
	at      time.Time // of a schedule; else zero
	caller  string    // of a notification; else ""
}

const (
	maxUnsent   = 10_000          // bounds the memory for one outage; the safety tick covers the rest
	resendDelay = 2 * time.Second // before another try on a live connection
)

func (b *Bus) keepUnsent(w wakeUp) {
	b.failedSends.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.unsent) < maxUnsent {
		b.unsent[w] = true
	}
	if b.current != nil && !b.closed {
		// The Bus has reconnected meanwhile, or the server refuses the message for now.
		time.AfterFunc(resendDelay, b.resendUnsent)
	}
}

// resendUnsent sends all unsent wake-ups again. If that fails, they are unsent again.
func (b *Bus) resendUnsent() {
	for w := range b.takeUnsent() {
		switch {
		case w.caller != "":
			b.spawn(func() { b.send(w, []byte(w.caller)) })
		case w.at.IsZero():
			b.Wake(w.subject, 1)
		default:
			b.WakeAt(w.subject, w.at)
		}
	}
}

func (b *Bus) takeUnsent() map[wakeUp]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	unsent := b.unsent
	b.unsent = map[wakeUp]bool{}
	return unsent
}

// OnQueue calls notify whenever any process, this process included, wakes a queue (QueueSubject), until
// stop or Close. It calls subscribed after each (re)subscription, since a wake-up that is published without
// a subscription is lost. Neither callback may block.
func (b *Bus) OnQueue(notify func(queue string, n int), subscribed func()) (stop func()) {
	return b.subscribe(queuePrefix+"*", func(m *nats.Msg) {
		queue, ok := unescapeToken(m.Subject[len(queuePrefix):])
		n, err := strconv.Atoi(string(m.Data))
		if !ok || err != nil || n < 1 {
			b.log.Warn("ignored an invalid wake-up", "subject", m.Subject)
			return
		}
		notify(queue, n)
	}, subscribed)
}

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
		if owner == conn.nats() && b.flushed(ctx, conn) {
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

// flushed waits until the server has received everything written so far. It returns false if the
// connection or ctx ends first.
func (b *Bus) flushed(ctx context.Context, conn *Connection) bool {
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
