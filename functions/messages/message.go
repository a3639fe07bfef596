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

func (h *handlers) message(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	return h.ownMessage(ctx, c, id)
}

type byKeyRequest api.MessageByKeyRequest

func (r *byKeyRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.User("from", r.From)
	return bad
}

func (h *handlers) byKey(ctx context.Context, c *fn.Call, req byKeyRequest) (any, error) {
	key := c.PathValue("client_msg_id")
	if !task.ValidKey(key) {
		return nil, task.Invalid([]task.Field{{Name: "client_msg_id", Message: task.KeyRule}})
	}
	from, err := c.UserToActFor(req.From)
	if err != nil {
		return nil, err
	}
	return h.ownMessage(ctx, c, message.ID(c.Caller.ID, from, key))
}

// ownMessage returns a message of the caller. The error is not_found for another caller's message, unless the caller reads all
// messages (fn.Call.ReadsAll).
func (h *handlers) ownMessage(ctx context.Context, c *fn.Call, id task.ID) (api.MessageResponse, error) {
	return h.readableMessage(ctx, c, id, func(messages.Detail) bool { return false })
}

// readableMessage is ownMessage, but also returns another caller's saved message if visible returns true.
func (h *handlers) readableMessage(ctx context.Context, c *fn.Call, id task.ID, visible func(m messages.Detail) bool) (api.MessageResponse, error) {
	m, err := h.env.Messages.ByID(ctx, id)
	switch {
	case task.CodeOf(err) == task.CodeNotFound, err == nil && m.CallerID != c.Caller.ID && !c.ReadsAll() && !visible(m):
		// A hidden message takes as long as a missing one: otherwise the response time would reveal that the message exists.
		return h.acceptedMessage(ctx, c, id)
	case err != nil:
		return api.MessageResponse{}, err
	}
	return messageResponse(c, m), nil
}
