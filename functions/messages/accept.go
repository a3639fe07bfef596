package messages

import (
	"context"
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
	subject := bus.AcceptSubject(bus.ShardOf(m.From, p.two.Shards), m.ID.String())
	metrics := p.env.Metrics().TwoPhase
	writing := time.Now()
	taken, err := p.env.Bus().Accept(ctx, bus.Acceptance{Subject: subject, Fingerprint: fn.Print(m.Fingerprint), Event: event})
	if err != nil {
		metrics.PublishFail.Inc()
		return ack, err
	}
	metrics.AcceptedWrite.Observe(time.Since(writing))
	metrics.AcceptedAck.Observe(time.Since(m.AcceptedAt))
	at := m.AcceptedAt
	if taken.Replayed {
		if taken.Fingerprint != fn.Print(m.Fingerprint) {
			return ack, task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
		}
		at = taken.Event.Time()
		c.Header().Set("Idempotency-Replayed", "true")
	}
	c.Header().Set("Location", location(m.ID))
	c.Status(http.StatusAccepted)
	return api.MessageAck{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: ackAccepted, State: ackAccepted,
		Durability: p.durability(ctx), AcceptedAt: fn.Instant(at), AcceptSeq: int64(taken.Seq),
	}, nil
}

// producer names this process for whoever looks into the stream.
func producer() string {
	name, _ := os.Hostname() // "" where there is none
	return name
}

// durabilityFor is how long what the stream promises is taken for known.
const durabilityFor = time.Minute

// promise is what the stream was found to promise.
type promise struct {
	word  string
	found time.Time
}

// durability is what an accepted message survives until it is saved: the death
// of processes where the stream has one copy, of a host where it has several.
// What cannot be found out is not promised.
func (p *post) durability(ctx context.Context) string {
	known := p.promised.Load()
	if known != nil && time.Since(known.found) < durabilityFor {
		return known.word
	}
	found := &promise{word: "process", found: time.Now()}
	if state, err := p.env.Bus().Accepting(ctx); err == nil && state.Replicas >= 3 {
		found.word = "replicated"
	}
	p.promised.Store(found)
	return found.word
}

func busy() error {
	return &task.Error{Code: task.CodeServerBusy, Message: "messages cannot be accepted now; repeat the same call later", RetryAfter: time.Second}
}

// unsaved answers for a message that a stream has accepted and that is not saved
// yet.
func (p *post) unsaved(ctx context.Context, c *fn.Call, id task.ID) (any, error) {
	for shard := range p.two.Shards {
		found, err := p.env.Bus().LookUp(ctx, bus.AcceptSubject(shard, id.String()))
		if err != nil && p.two.Enabled {
			return nil, busy()
		}
		if found == nil {
			continue
		}
		m, err := fn.AcceptedMessage(found.Event, found.Seq, found.Fingerprint)
		if err != nil || m.CallerID != c.Caller.ID && !c.May(fn.Admin) {
			break
		}
		return api.MessageResponse{
			ServerMsgID: id.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: m.To.String(),
			ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
			State: ackAccepted, Confirm: m.Confirm, MaxSends: int(m.MaxSends), RemainingSends: int(m.MaxSends), Epoch: 1,
			ExpectedReceipts: int(m.ExpectedReceipts), Receipts: []api.Receipt{}, SentAt: fn.Instant(m.SentAt),
			AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), CreatedAt: m.AcceptedAt.UTC(), UpdatedAt: m.AcceptedAt.UTC(),
		}, nil
	}
	return nil, noMessage()
}
