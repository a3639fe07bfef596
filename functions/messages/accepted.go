package messages

import (
	"context"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// acceptedMessage returns a message that is accepted and not saved yet. It reads the stream of accepted messages, even if
// TWO_PHASE_ENABLED is now false. The error is not_found if the stream does not have the message or the caller may not read it, and
// server_busy while NATS is unavailable, because the message may exist.
func (h *handlers) acceptedMessage(ctx context.Context, c *fn.Call, id task.ID) (api.MessageResponse, error) {
	if h.env.Bus() == nil {
		return api.MessageResponse{}, messageNotFound()
	}
	m, err := h.lookUpAccepted(ctx, id)
	if err != nil {
		return api.MessageResponse{}, err
	}
	if m == nil || m.CallerID != c.Caller.ID && !c.ReadsAll() {
		return api.MessageResponse{}, messageNotFound()
	}
	delivered, err := h.env.Messages.DeliveredAt(ctx, id)
	if err != nil {
		return api.MessageResponse{}, err
	}
	return api.MessageResponse{
		ServerMsgID: id.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: shownAddress(c, m.To, m.CallerID),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		State: api.AckAccepted, Confirm: m.Confirm, MaxSends: int(m.MaxSends), RemainingSends: int(m.MaxSends), Epoch: 1,
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: []api.Receipt{}, SentAt: fn.Instant(m.SentAt),
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, DeliveredAt: fn.Instant(delivered), CreatedAt: m.AcceptedAt.UTC(), UpdatedAt: m.AcceptedAt.UTC(),
	}, nil
}

// lookUpAccepted returns the message with this id in the stream of accepted messages, or nil if there is none.
func (h *handlers) lookUpAccepted(ctx context.Context, id task.ID) (*messages.Submission, error) {
	found, err := h.env.Bus().LookUp(ctx, id.String())
	if err != nil {
		return nil, task.Busy("cannot check now whether this message exists; repeat the same call later")
	}
	if found == nil {
		return nil, nil
	}
	event := streamevent.FromStream(found.Event, found.Seq, found.Fingerprint)
	m, err := event.Message()
	if err != nil {
		return nil, nil // the event is not that of a valid message
	}
	return m, nil
}
