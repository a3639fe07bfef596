package messages

import (
	"context"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

const maxRevealed = 50 // messages in one call

type revealRequest api.MessageRevealRequest

func (r *revealRequest) Validate() []task.Field {
	var bad decode.BadFields
	checkIDs(&bad, r.IDs, maxRevealed)
	bad.AtMost("reason", r.Reason, maxReason)
	return bad
}

// reveal returns the data of messages for the console, which hides data by default. It leaves out messages that the caller may
// not read. Before the response, reveal records each returned message as revealed to the caller, at most once an hour.
func (h *handlers) reveal(ctx context.Context, c *fn.Call, req revealRequest) (any, error) {
	if err := c.Reserve(ctx, len(req.IDs)*message.MaxData); err != nil {
		return nil, err
	}
	isMember := func(m messages.Detail) bool { // whether the caller is a member of the message's conversation
		return m.Kind == message.User && (m.From == c.Caller.Name || m.Destination == c.Caller.Name)
	}
	revealed := api.MessageRevealResponse{Items: []api.RevealedMessage{}}
	var ids []task.ID
	for _, text := range req.IDs {
		id, _ := task.ParseID(text) // valid
		m, err := h.readableMessage(ctx, c, id, isMember)
		if task.CodeOf(err) == task.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
		revealed.Items = append(revealed.Items, api.RevealedMessage{ServerMsgID: m.ServerMsgID, Data: m.Data})
	}
	return revealed, h.env.Messages.RecordReveal(ctx, ids, c.AsOperator(req.Reason))
}
