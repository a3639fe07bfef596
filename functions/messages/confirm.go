package messages

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// maxToken limits the characters of a token; issued tokens are shorter.
const maxToken = 100

type receivedRequest api.ReceivedRequest

func (r *receivedRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.User("consumer", r.Consumer)
	bad.AtMost("token", r.Token, maxToken)
	return bad
}

// confirm records that a receiver has the message. A confirmation may be repeated. The error is not_found if the caller may not
// confirm the message. Such a call locks no row and takes as long as a call with an unknown id, so the response does not
// reveal that the message exists. A repeated confirmation locks no row either. With message.IsRecipient, confirm locks no row before
// the send is recorded: the relay skips locked messages.
func (h *handlers) confirm(ctx context.Context, c *fn.Call, id task.ID, req receivedRequest) (any, error) {
	consumer, err := c.UserToActFor(req.Consumer)
	if err != nil {
		return nil, err
	}
	confirmer := message.Confirmer{
		User: c.Caller.Name, Consumer: consumer, Receives: c.Caller.Receives, Token: req.Token, Admin: c.May(fn.Admin),
	}
	recipient, found, err := h.env.Messages.Recipient(ctx, id, consumer)
	if err != nil {
		return nil, err
	}
	permission := confirmer.PermissionFor(recipient.To, streamevent.ConfirmToken(recipient.Token))
	if !found || permission == message.NoPermission {
		c.Log("message", id.String(), "rejected", "caller is not a receiver")
		return nil, h.notFoundOrBusy(ctx, id, "confirm it again later", func(m *messages.Submission) bool {
			return confirmer.PermissionFor(m.To, "") != message.NoPermission
		})
	}
	c.Log("message", id.String())
	if recipient.Confirmed {
		c.Status(http.StatusNoContent)
		return nil, h.env.Messages.AwaitReceipt(ctx)
	}
	if permission == message.IsRecipient && recipient.FirstSend != message.WasSent {
		err = messageNotFound()
		if recipient.FirstSend == message.MaybeSent {
			err = h.env.Messages.AwaitSend(ctx, id)
		}
		if err != nil {
			c.Log("rejected", err.Error())
			return nil, err
		}
	}
	m, err := h.env.Messages.Confirm(ctx, id, messages.Confirmation{Consumer: consumer, Permission: permission, By: c.AsOperator("")})
	if err != nil {
		c.Log("rejected", err.Error())
		return nil, err
	}
	c.Log("state", m.State())
	c.Status(http.StatusNoContent)
	return nil, nil
}

// notFoundOrBusy returns the error of a call for a message that is not in the database, or that the caller may not use. With
// TWO_PHASE_DELIVER_BEFORE_SAVED a receiver may get a message, and make the call, before the message is saved. Then the error is
// server_busy, and the error's text ends with retry, which says what to do. Otherwise the error is not_found. It is not_found, too,
// if visible returns false for the accepted message, or if a message to another address is saved under this id: then the accepted
// message will be rejected.
func (h *handlers) notFoundOrBusy(ctx context.Context, id task.ID, retry string, visible func(*messages.Submission) bool) error {
	if h.env.Bus() == nil || !h.env.Config.TwoPhase.DeliverBeforeSaved {
		return messageNotFound()
	}
	m, err := h.lookUpAccepted(ctx, id)
	switch {
	case err != nil:
		return err
	case m == nil || !visible(m):
		return messageNotFound()
	}
	saved, found, err := h.env.Messages.Recipient(ctx, id, "")
	switch {
	case err != nil:
		return err
	case found && saved.To != m.To: // if the address is the same, a retry finds the saved message
		return messageNotFound()
	}
	return task.Busy("this message is not saved yet; " + retry)
}
