package messages

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// unsaved answers for a message that a stream has accepted and that is not saved
// yet, also after accepting was switched off. Without NATS there is none; while
// it is away nobody can say that there is none.
func (p *post) unsaved(ctx context.Context, c *fn.Call, id task.ID) (any, error) {
	if p.env.Bus() == nil {
		return nil, noMessage()
	}
	m, err := p.accepted(ctx, id)
	if err != nil {
		return nil, err
	}
	if m == nil || m.CallerID != c.Caller.ID && !c.May(fn.Admin) {
		return nil, noMessage()
	}
	delivered, err := p.db.DeliveredAt(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.MessageResponse{
		ServerMsgID: id.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: m.To.String(),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		State: api.AckAccepted, Confirm: m.Confirm, MaxSends: int(m.MaxSends), RemainingSends: int(m.MaxSends), Epoch: 1,
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: []api.Receipt{}, SentAt: fn.Instant(m.SentAt),
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, DeliveredAt: fn.Instant(delivered), CreatedAt: m.AcceptedAt.UTC(), UpdatedAt: m.AcceptedAt.UTC(),
	}, nil
}

// accepted is the message that the stream of accepted messages holds under an id;
// nil when it holds none.
func (p *post) accepted(ctx context.Context, id task.ID) (*store.NewMessage, error) {
	found, err := p.env.Bus().LookUp(ctx, id.String())
	if err != nil {
		return nil, &task.Error{Code: task.CodeServerBusy, Message: "whether there is such a message cannot be determined now; repeat the same call later", RetryAfter: time.Second}
	}
	if found == nil {
		return nil, nil
	}
	posted := fn.AcceptedStreamEvent(found.Event, found.Seq, found.Fingerprint)
	m, err := posted.Message()
	if err != nil {
		return nil, nil // not one of ours
	}
	return m, nil
}
