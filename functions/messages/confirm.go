package messages

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// received records the confirmation of a receiver of the message, also a repeated or a late
// one. For all other callers the error is not_found: nothing is locked for them, and an unknown
// id takes as long.
func (h *handlers) received(ctx context.Context, c *fn.Call, req receivedRequest) (any, error) {
	id, err := c.ID(oneMessage)
	if err != nil {
		return nil, err
	}
	consumer, err := c.ActFor(req.Consumer)
	if err != nil {
		return nil, err
	}
	confirmer := message.Confirmer{
		User: c.Caller.Name, Consumer: consumer, Receives: c.Caller.Receives, Token: req.Token, Admin: c.May(fn.Admin),
	}
	to, found, err := h.messages.Recipient(ctx, id)
	if err != nil {
		return nil, err
	}
	ground := confirmer.GroundOf(to.To, streamevent.ConfirmToken(to.Token))
	if !found || ground == message.NoGround {
		c.Log("message", id.String(), "confirmed", "not by its receiver")
		return nil, h.notSaved(ctx, id, "confirm it again later", func(m *messages.Submission) bool {
			return confirmer.GroundOf(m.To, "") != message.NoGround
		})
	}
	m, err := h.messages.Confirm(ctx, id, messages.Confirmation{Consumer: consumer, Ground: ground, By: c.Operator("")})
	if err != nil {
		c.Log("message", id.String(), "confirmed", "before it was sent")
		return nil, err
	}
	c.Log("message", id.String(), "state", m.State())
	c.Status(http.StatusNoContent)
	return nil, nil
}

// notSaved is the error for a message that is not in the database. If messages are delivered
// before they are saved, a receiver may call too early and has to repeat the call: then the
// error is server_busy. It is not_found if mine reports that the caller may not see the accepted
// message, or if another message is saved under its id: the accepted one will be rejected, so a
// repeat would never succeed.
func (h *handlers) notSaved(ctx context.Context, id task.ID, repeat string, mine func(*messages.Submission) bool) error {
	if h.env.Bus() == nil || !h.env.Config.TwoPhase.DeliverBeforeSaved {
		return noMessage()
	}
	m, err := h.lookUpAccepted(ctx, id)
	switch {
	case err != nil:
		return err
	case m == nil || !mine(m):
		return noMessage()
	}
	saved, found, err := h.messages.Recipient(ctx, id)
	switch {
	case err != nil:
		return err
	case found && saved.To != m.To: // with the same address a repeat finds the saved message
		return noMessage()
	}
	return fn.Busy("this message is not saved yet; " + repeat)
}
