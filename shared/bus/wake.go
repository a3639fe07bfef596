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
	wakeEvery  = 20 * time.Millisecond
	queueEvery = 5 * time.Millisecond
)

// pump holds what is to be told to one subject while the last telling is recent.
type pump struct{ n int }

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
	if p := b.pumps[subject]; p != nil {
		p.n += n
		return
	}
	b.pumps[subject] = &pump{n: n}
	b.work.Go(func() { b.pump(subject) })
}

// pump sends for one subject until there was nothing to say for a while.
func (b *Bus) pump(subject string) {
	every := wakeEvery
	if strings.HasPrefix(subject, queuePrefix) {
		every = queueEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		b.mu.Lock()
		p := b.pumps[subject]
		n := p.n
		if p.n = 0; n == 0 {
			delete(b.pumps, subject)
		}
		b.mu.Unlock()
		if n == 0 {
			return
		}
		b.tell(hint{subject: subject}, strconv.AppendInt(nil, int64(n), 10))
		select {
		case <-tick.C:
		case <-b.closing.Done():
		}
	}
}

// tell returns once the server has it: what is written to a connection that died
// unnoticed was told to nobody.
func (b *Bus) tell(h hint, body []byte) {
	<-b.tried
	b.mu.Lock()
	up := b.up
	b.mu.Unlock()
	if up == nil || up.conn().Publish(h.subject, body) != nil || up.conn().FlushTimeout(writeTimeout) != nil {
		b.miss(h)
	}
}

// hint is a wake-up that could not be told: of subject, at once for the zero
// time. That one is owed is all that is kept of it, not how many things became
// due. With a caller it is the notification that this caller has changed.
type hint struct {
	subject string
	at      time.Time
	caller  string
}

// maxMissed bounds what is remembered of an outage; the safety tick covers the
// rest.
const maxMissed = 10_000

func (b *Bus) miss(h hint) {
	b.dropped.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.missed) < maxMissed {
		b.missed[h] = true
	}
	if b.up != nil && !b.closed {
		// The connection came back meanwhile, or what is asked for cannot be done yet.
		time.AfterFunc(missedPause, b.tellMissed)
	}
}

// missedPause is how long what a live connection did not take waits to be told
// again.
const missedPause = 2 * time.Second

// tellMissed tells what is owed; without a connection it goes on being owed.
func (b *Bus) tellMissed() {
	for h := range b.takeMissed() {
		switch {
		case h.caller != "":
			b.spawn(func() { b.tell(h, []byte(h.caller)) })
		case h.at.IsZero():
			b.Wake(h.subject, 1)
		default:
			b.WakeAt(h.subject, h.at)
		}
	}
}

func (b *Bus) takeMissed() map[hint]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	missed := b.missed
	b.missed = map[hint]bool{}
	return missed
}

// OnQueue calls heard whenever any process wakes a queue (QueueSubject), this
// one included, until stop or Close. What is told while NATS is away, or before it
// knows who listens, is not heard: listens is called as soon as all is, the first
// time and after each outage. Neither must block.
func (b *Bus) OnQueue(heard func(queue string, n int), listens func()) (stop func()) {
	return b.subscribe(queuePrefix+"*", func(m *nats.Msg) {
		queue, ok := nameOf(m.Subject[len(queuePrefix):])
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
	b.spawn(func() { b.listen(ctx, subject, received, listens) })
	return cancel
}

func (b *Bus) listen(ctx context.Context, subject string, received nats.MsgHandler, listens func()) {
	var on *nats.Conn // what sub belongs to; it survives a reconnect
	var sub *nats.Subscription
	for ctx.Err() == nil {
		l, err := b.await(ctx)
		if err != nil {
			break
		}
		if on != l.conn() {
			if sub, err = l.conn().Subscribe(subject, received); err == nil {
				on = l.conn()
			} else if !errors.Is(err, nats.ErrConnectionClosed) {
				b.log.Error("subscribe", "subject", subject, "error", err)
				return
			}
		}
		if on == l.conn() && b.reached(ctx, l) {
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

// reached waits until the server has what was sent over a link; not when the link
// or ctx ends before.
func (b *Bus) reached(ctx context.Context, l *link) bool {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	for ctx.Err() == nil {
		if l.conn().FlushTimeout(writeTimeout) == nil {
			return ctx.Err() == nil
		}
		select {
		case <-time.After(redialWait):
		case <-ctx.Done():
		}
	}
	return false
}
