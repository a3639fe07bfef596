package intake

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// accept has a stream take the message and answers ack accepted. The stream is
// the judge of a repeat as the primary key is where messages are saved: it holds
// one message for each id. bus.ErrUnavailable and bus.ErrRefused say that it does not
// have this one, or that nobody knows.
func (in *Intake) accept(ctx context.Context, m *store.NewMessage) (Submitted, error) {
	m.AcceptedAt, m.Producer = time.Now().UTC(), producer()
	event, err := fn.AcceptedEvent(m)
	if err != nil {
		return Submitted{}, err
	}
	metrics := in.env.Metrics().TwoPhase
	durability, err := in.durability(ctx)
	if err != nil {
		metrics.PublishFail.Inc()
		return Submitted{}, err
	}
	writing := time.Now()
	taken, err := in.env.Bus().Accept(ctx, bus.Acceptance{
		Subject: bus.AcceptSubject(m.From, m.ID.String()), Fingerprint: fn.FingerprintText(m.Fingerprint), Event: event,
	})
	if err != nil {
		metrics.PublishFail.Inc()
		return Submitted{}, err
	}
	metrics.AcceptedWrite.Observe(time.Since(writing))
	metrics.AcceptedAck.Observe(time.Since(m.AcceptedAt))
	if taken.Replayed {
		return again(m, durability, taken.Seq, taken.Event.Time(), taken.Fingerprint)
	}
	return accepted(m, durability, taken.Seq, m.AcceptedAt), nil
}

// again answers for a message whose id the stream has since at.
func again(m *store.NewMessage, durability bus.Durability, seq uint64, at time.Time, print string) (Submitted, error) {
	if print != fn.FingerprintText(m.Fingerprint) {
		return Submitted{}, task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
	}
	first := accepted(m, durability, seq, at)
	first.Replayed = true
	return first, nil
}

func accepted(m *store.NewMessage, durability bus.Durability, seq uint64, at time.Time) Submitted {
	return Submitted{Ack: api.MessageAck{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckAccepted, State: api.AckAccepted,
		Durability: durability.String(), AcceptedAt: fn.Instant(at), AcceptSeq: int64(seq),
	}}
}

// refused answers for a message that may not be accepted: a repeat of one that
// was, before it might not, is still a repeat.
func (in *Intake) refused(ctx context.Context, c *fn.Call, m *store.NewMessage) (Submitted, error) {
	found, err := in.env.Bus().LookUp(ctx, m.ID.String())
	switch {
	case err != nil:
		c.Log("not_looked_up", err.Error())
		return Submitted{}, busy()
	case found == nil:
		return in.save(m)
	}
	durability, err := in.durability(ctx)
	if err != nil {
		return Submitted{}, busy()
	}
	return again(m, durability, found.Seq, found.Event.Time(), found.Fingerprint)
}

// producer names this process for whoever looks into the stream.
func producer() string {
	name, _ := os.Hostname() // "" where there is none
	return name
}

const (
	durabilityFor = time.Minute // how long what the stream gives is taken for known
	askAgain      = time.Second // the same of what could not be found out
	askLimit      = 2 * time.Second
)

// promise is what an accepted message was found to survive.
type promise struct {
	durability bus.Durability
	until      time.Time
}

// durability is what an accepted message survives until it is saved. What
// cannot be found out is not promised. bus.ErrUnavailable: that is less than a message
// must survive, so none may be accepted.
func (in *Intake) durability(ctx context.Context) (bus.Durability, error) {
	gives, least := in.promise(ctx), in.two.Durability|bus.DurableProcess
	if !gives.Covers(least) {
		return gives, fmt.Errorf("%w: the stream is known to give %s, and a message must survive %s", bus.ErrUnavailable, gives, least)
	}
	return gives, nil
}

func (in *Intake) promise(ctx context.Context) bus.Durability {
	if known := in.promised.Load(); known.holds() {
		return known.durability
	}
	in.asking.Lock()
	defer in.asking.Unlock()
	if known := in.promised.Load(); known.holds() {
		return known.durability
	}
	// The answer is everybody's, whether or not this caller waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	found, rest := promise{}, durabilityFor
	var err error
	if found.durability, err = in.env.Bus().Durability(ctx, in.two.MonitorURL); err != nil {
		rest = askAgain
	}
	found.until = time.Now().Add(rest)
	in.promised.Store(&found)
	return found.durability
}

func (p *promise) holds() bool { return p != nil && time.Now().Before(p.until) }

func busy() error {
	return &task.Error{Code: task.CodeServerBusy, Message: "messages cannot be accepted now; repeat the same call later", RetryAfter: time.Second}
}
