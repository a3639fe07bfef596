package messages

import (
	"context"
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// received takes in a confirmation from whom the message is for: the first time,
// again, late. To all others the message does not exist, as one that was never
// sent does not; so for them nothing is locked and an unknown id costs the same.
func (p *post) received(ctx context.Context, c *fn.Call, req receivedRequest) (any, error) {
	id, err := c.ID(oneMessage)
	if err != nil {
		return nil, err
	}
	consumer, err := c.ActFor(req.Consumer)
	if err != nil {
		return nil, err
	}
	who := message.Confirmer{
		User: c.Caller.Name, Consumer: consumer, Receives: c.Caller.Receives, Token: req.Token, Admin: c.May(fn.Admin),
	}
	to, found, err := p.db.Recipient(ctx, id)
	if err != nil {
		return nil, err
	}
	ground := who.GroundOf(to.To, fn.ConfirmToken(to.Token))
	if !found || ground == message.NoGround {
		c.Log("message", id.String(), "confirmed", "not by its receiver")
		return nil, p.notSaved(ctx, id, "confirm it again later", func(m *store.NewMessage) bool {
			return who.GroundOf(m.To, "") != message.NoGround
		})
	}
	m, err := p.db.ReceiveMessage(ctx, id, store.Confirmation{Consumer: consumer, Ground: ground, By: c.Operator("")})
	if err != nil {
		c.Log("message", id.String(), "confirmed", "before it was sent")
		return nil, err
	}
	c.Log("message", id.String(), "state", m.State())
	c.Status(http.StatusNoContent)
	return nil, nil
}

// notSaved is the error for a message that is not in the database. Where messages are
// delivered before they are saved, a receiver may call before the row is there: it has
// to repeat the call. mine reports whether the caller may know of the message; for
// others it does not exist. Nor does it for anybody once another message is saved
// under its id: then it can only be rejected, and a repeat would never succeed.
func (p *post) notSaved(ctx context.Context, id task.ID, repeat string, mine func(*store.NewMessage) bool) error {
	if p.env.Bus() == nil || !p.env.Config.TwoPhase.DeliverBeforeSaved {
		return noMessage()
	}
	m, err := p.accepted(ctx, id)
	switch {
	case err != nil:
		return err
	case m == nil || !mine(m):
		return noMessage()
	}
	saved, found, err := p.db.Recipient(ctx, id)
	switch {
	case err != nil:
		return err
	case found && saved.To != m.To: // with the same address a repeat meets the saved one
		return noMessage()
	}
	return &task.Error{
		Code: task.CodeServerBusy, Message: "this message is not saved yet; " + repeat, RetryAfter: time.Second,
	}
}
