package messages

import (
	"context"
	"fmt"
	"net/http"
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
// one message for each id. bus.ErrAway and bus.ErrRefused say that it does not
// have this one, or that nobody knows.
func (p *post) accept(ctx context.Context, c *fn.Call, m *store.NewMessage) (ack api.MessageAck, err error) {
	m.AcceptedAt, m.Producer = time.Now().UTC(), producer()
	event, err := fn.AcceptedEvent(m)
	if err != nil {
		return ack, err
	}
	metrics := p.env.Metrics().TwoPhase
	durability, err := p.durability(ctx)
	if err != nil {
		metrics.PublishFail.Inc()
		return ack, err
	}
	writing := time.Now()
	taken, err := p.env.Bus().Accept(ctx, bus.Acceptance{
		Subject: bus.AcceptSubject(m.From, m.ID.String()), Fingerprint: fn.Print(m.Fingerprint), Event: event,
	})
	if err != nil {
		metrics.PublishFail.Inc()
		return ack, err
	}
	metrics.AcceptedWrite.Observe(time.Since(writing))
	metrics.AcceptedAck.Observe(time.Since(m.AcceptedAt))
	if taken.Replayed {
		return p.again(c, m, durability, taken.Seq, taken.Event.Time(), taken.Fingerprint)
	}
	return p.taken(c, m, durability, taken.Seq, m.AcceptedAt), nil
}

// again answers for a message whose id the stream has since at.
func (p *post) again(c *fn.Call, m *store.NewMessage, durability bus.Durability, seq uint64, at time.Time, print string) (ack api.MessageAck, err error) {
	if print != fn.Print(m.Fingerprint) {
		return ack, task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
	}
	c.Header().Set("Idempotency-Replayed", "true")
	return p.taken(c, m, durability, seq, at), nil
}

func (p *post) taken(c *fn.Call, m *store.NewMessage, durability bus.Durability, seq uint64, at time.Time) api.MessageAck {
	c.Header().Set("Location", location(m.ID))
	c.Status(http.StatusAccepted)
	return api.MessageAck{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckAccepted, State: api.AckAccepted,
		Durability: durability.String(), AcceptedAt: fn.Instant(at), AcceptSeq: int64(seq),
	}
}

// refused answers for a message that may not be accepted: a repeat of one that
// was, before it might not, is still a repeat.
func (p *post) refused(ctx context.Context, c *fn.Call, m *store.NewMessage) (any, error) {
	found, err := p.env.Bus().LookUp(ctx, m.ID.String())
	switch {
	case err != nil:
		c.Log("not_looked_up", err.Error())
		return nil, busy()
	case found == nil:
		return p.save(c, m)
	}
	durability, err := p.durability(ctx)
	if err != nil {
		return nil, busy()
	}
	return p.again(c, m, durability, found.Seq, found.Event.Time(), found.Fingerprint)
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
// cannot be found out is not promised. bus.ErrAway: that is less than a message
// must survive, so none may be accepted.
func (p *post) durability(ctx context.Context) (bus.Durability, error) {
	gives, least := p.promise(ctx), p.two.Durability|bus.DurableProcess
	if !gives.Covers(least) {
		return gives, fmt.Errorf("%w: the stream is known to give %s, and a message must survive %s", bus.ErrAway, gives, least)
	}
	return gives, nil
}

func (p *post) promise(ctx context.Context) bus.Durability {
	if known := p.promised.Load(); known.holds() {
		return known.durability
	}
	p.asking.Lock()
	defer p.asking.Unlock()
	if known := p.promised.Load(); known.holds() {
		return known.durability
	}
	// The answer is everybody's, whether or not this caller waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	found, rest := promise{}, durabilityFor
	var err error
	if found.durability, err = p.env.Bus().Durability(ctx, p.two.MonitorURL); err != nil {
		rest = askAgain
	}
	found.until = time.Now().Add(rest)
	p.promised.Store(&found)
	return found.durability
}

func (p *promise) holds() bool { return p != nil && time.Now().Before(p.until) }

func busy() error {
	return &task.Error{Code: task.CodeServerBusy, Message: "messages cannot be accepted now; repeat the same call later", RetryAfter: time.Second}
}

// unsaved answers for a message that a stream has accepted and that is not saved
// yet, also after accepting was switched off. Without NATS there is none; while
// it is away nobody can say that there is none.
func (p *post) unsaved(ctx context.Context, c *fn.Call, id task.ID) (any, error) {
	if p.env.Bus() == nil {
		return nil, noMessage()
	}
	found, err := p.env.Bus().LookUp(ctx, id.String())
	if err != nil {
		return nil, &task.Error{Code: task.CodeServerBusy, Message: "it cannot be told now whether there is such a message; repeat the same call later", RetryAfter: time.Second}
	}
	if found == nil {
		return nil, noMessage()
	}
	posted := fn.PostedOf(found.Event, found.Seq, found.Fingerprint)
	m, err := posted.Message()
	if err != nil || m.CallerID != c.Caller.ID && !c.May(fn.Admin) {
		return nil, noMessage()
	}
	return api.MessageResponse{
		ServerMsgID: id.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: m.To.String(),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		State: api.AckAccepted, Confirm: m.Confirm, MaxSends: int(m.MaxSends), RemainingSends: int(m.MaxSends), Epoch: 1,
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: []api.Receipt{}, SentAt: fn.Instant(m.SentAt),
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, CreatedAt: m.AcceptedAt.UTC(), UpdatedAt: m.AcceptedAt.UTC(),
	}, nil
}
