package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// How often one process wakes one subject at most: a function, to which each
// wake-up is a call; and a queue, for which somebody waits right now.
const (
	wakeInterval      = 20 * time.Millisecond
	queueWakeInterval = 5 * time.Millisecond
)

// debouncer holds what is to be told to one subject while the last telling is recent.
type debouncer struct{ n int }

// Wake tells whoever serves subject that n things became due. It never blocks
// and never fails: the first call is sent at once, further ones within 20 ms (of a
// queue 5 ms) are summed up and sent together, and what cannot be sent is counted as dropped and
// told, as one thing, when NATS is back. n below 1 counts as 1.
func (b *Bus) Wake(subject string, n int) {
	if b == nil {
		return
	}
	b.start()
	n = max(n, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		b.dropped.Add(1)
		return
	}
	if p := b.debouncers[subject]; p != nil {
		p.n += n
		return
	}
	b.debouncers[subject] = &debouncer{n: n}
	b.background.Go(func() { b.debounce(subject) })
}

// debounce sends for one subject until there was nothing to say for a while.
func (b *Bus) debounce(subject string) {
	every := wakeInterval
	if strings.HasPrefix(subject, queuePrefix) {
		every = queueWakeInterval
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		b.mu.Lock()
		p := b.debouncers[subject]
		n := p.n
		if p.n = 0; n == 0 {
			delete(b.debouncers, subject)
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

// send returns once the server has it: what is written to a connection that died
// unnoticed was told to nobody.
func (b *Bus) send(h wakeUp, body []byte) {
	<-b.attempted
	b.mu.Lock()
	up := b.current
	b.mu.Unlock()
	if up == nil || up.nats().Publish(h.subject, body) != nil || up.nats().FlushTimeout(writeTimeout) != nil {
		b.keepUnsent(h)
	}
}

// wakeUp is a wake-up that could not be told: of subject, at once for the zero
// time. That one is owed is all that is kept of it, not how many things became
// due. With a caller it is the notification that this caller has changed.
type wakeUp struct {
	subject string
	at      time.Time
	caller  string
}

// maxUnsent bounds what is remembered of an outage; the safety tick covers the
// rest.
const maxUnsent = 10_000

func (b *Bus) keepUnsent(h wakeUp) {
	b.dropped.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.unsent) < maxUnsent {
		b.unsent[h] = true
	}
	if b.current != nil && !b.closed {
		// The connection came back meanwhile, or what is asked for cannot be done yet.
		time.AfterFunc(resendDelay, b.resendUnsent)
	}
}

// resendDelay is how long what a live connection did not take waits to be told
// again.
const resendDelay = 2 * time.Second

// resendUnsent tells what is owed; without a connection it goes on being owed.
func (b *Bus) resendUnsent() {
	for h := range b.takeUnsent() {
		switch {
		case h.caller != "":
			b.spawn(func() { b.send(h, []byte(h.caller)) })
		case h.at.IsZero():
			b.Wake(h.subject, 1)
		default:
			b.WakeAt(h.subject, h.at)
		}
	}
}

func (b *Bus) takeUnsent() map[wakeUp]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	missed := b.unsent
	b.unsent = map[wakeUp]bool{}
	return missed
}

// OnQueue calls heard whenever any process wakes a queue (QueueSubject), this
// one included, until stop or Close. What is told while NATS is away, or before it
// knows who listens, is not heard: listens is called as soon as all is, the first
// time and after each outage. Neither must block.
func (b *Bus) OnQueue(heard func(queue string, n int), listens func()) (stop func()) {
	return b.subscribe(queuePrefix+"*", func(m *nats.Msg) {
		queue, ok := unescapeToken(m.Subject[len(queuePrefix):])
		n, err := strconv.Atoi(string(m.Data))
		if !ok || err != nil || n < 1 {
			b.log.Warn("a wake-up that is not ours", "subject", m.Subject)
			return
		}
		heard(queue, n)
	}, listens)
}

// subscribe calls received for each message of a core subject until stop or Close,
// and listens whenever the server has the subscription: the first time and after
// each outage. It does not wait for the connection.
func (b *Bus) subscribe(subject string, received nats.MsgHandler, listens func()) (stop func()) {
	if b == nil {
		return func() {}
	}
	b.start()
	ctx, cancel := context.WithCancel(b.closing)
	b.spawn(func() { b.runSubscription(ctx, subject, received, listens) })
	return cancel
}

func (b *Bus) runSubscription(ctx context.Context, subject string, received nats.MsgHandler, listens func()) {
	var on *nats.Conn // what sub belongs to; it survives a reconnect
	var sub *nats.Subscription
	for ctx.Err() == nil {
		l, err := b.awaitConnection(ctx)
		if err != nil {
			break
		}
		if on != l.nats() {
			if sub, err = l.nats().Subscribe(subject, received); err == nil {
				on = l.nats()
			} else if !errors.Is(err, nats.ErrConnectionClosed) {
				b.log.Error("subscribe", "subject", subject, "error", err)
				return
			}
		}
		if on == l.nats() && b.flushed(ctx, l) {
			listens()
		}
		select {
		case <-l.ctx.Done():
		case <-ctx.Done():
		}
	}
	if sub == nil {
		return
	}
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.log.Warn("unsubscribe", "subject", subject, "error", err)
	}
}

// flushed waits until the server has what was sent over a link; not when the link
// or ctx ends before.
func (b *Bus) flushed(ctx context.Context, l *connection) bool {
	ctx, cancel := l.untilLost(ctx)
	defer cancel()
	for ctx.Err() == nil {
		if l.nats().FlushTimeout(writeTimeout) == nil {
			return ctx.Err() == nil
		}
		select {
		case <-time.After(redialWait):
		case <-ctx.Done():
		}
	}
	return false
}
