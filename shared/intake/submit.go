package intake

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// Submit returns when the message of the caller is saved or accepted. req must be valid (Request.Validate). After an
// error that is no refusal, it is unknown whether the message is saved or accepted: the client must repeat the same
// request.
func (in *Intake) Submit(ctx context.Context, c *fn.Call, req Request) (Submitted, error) {
	m, err := in.newMessage(ctx, c, &req)
	if err != nil {
		return Submitted{}, err
	}
	if m.Refused != nil {
		return in.saveOrAccept(ctx, c, req, m)
	}
	admission, refused := in.env.Messages.Admit(ctx, c.Caller, m, in.twoPhase.Accepts(req.Ack))
	if refused != nil {
		m.Refused = refused
		return in.saveOrAccept(ctx, c, req, m)
	}
	defer admission.End()
	submitted, err := in.saveOrAccept(ctx, c, req, m)
	switch {
	case err != nil || submitted.Replayed: // if the message was saved despite the error, the next count of the rows includes it
	case submitted.Ack.Ack == api.AckAccepted:
		admission.Accepted(submitted.Ack.AcceptSeq)
	default:
		admission.Saved()
	}
	return submitted, err
}

// saveOrAccept saves the message, or publishes it to the stream of accepted messages. If the stream cannot accept the
// message, saveOrAccept saves it; with TWO_PHASE_FAIL_OPEN=false it does so only after bus.ErrNotEvent. For a message with Refused set it only looks up
// whether the message was accepted or saved before.
func (in *Intake) saveOrAccept(ctx context.Context, c *fn.Call, req Request, m *messages.Submission) (Submitted, error) {
	switch {
	case !in.twoPhase.Accepts(req.Ack):
		return in.save(m)
	case m.Refused != nil:
		return in.resultOfRefused(ctx, c, m)
	}
	accepted, err := in.accept(ctx, m)
	if !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrRefused) {
		return accepted, err
	}
	c.Log("not_accepted", err.Error())
	in.makeRoom()
	// After ErrNotEvent the stream works, but accepts nothing with this id until the function save has removed what is not an event.
	if !in.twoPhase.FailOpen && !errors.Is(err, bus.ErrNotEvent) {
		return Submitted{}, errBusy()
	}
	saved, err := in.save(m)
	saved.Ack.Ordering = "best-effort"
	return saved, err
}

// makeRoom wakes the function save, at most once a second: the stream may be full of messages that are already saved,
// and save removes these.
func (in *Intake) makeRoom() {
	now := time.Now().Unix()
	if last := in.madeRoomAt.Load(); last != now && in.madeRoomAt.CompareAndSwap(last, now) {
		in.env.WakeSaveAt(time.Time{})
	}
}

// newMessage converts a valid request. It sets the field Refused of a message that has a blocked word, or
// whose address may not be called. This refusal, and a refusal by Admit, apply only to a new message: a repeat gets
// the result of the first request.
func (in *Intake) newMessage(ctx context.Context, c *fn.Call, req *Request) (*messages.Submission, error) {
	from, err := c.UserToActFor(req.From)
	if err != nil {
		return nil, err
	}
	m, err := newSubmission(req, c.Caller.ID, from)
	if err != nil {
		return nil, err
	}
	if m.To.Kind == message.URL {
		var bad decode.BadFields
		bad.AllowedHost("to", m.To.Name, in.env.Config.OutgoingNetworks)
		m.Refused = task.Invalid(bad)
	}
	blocked, err := in.env.Admin.Blocked(ctx, allText(m.Data))
	if err != nil {
		return nil, err
	}
	if blocked {
		m.Refused = task.Refuse(task.CodeBlocked, "the data holds a blocked word; change the text")
	}
	return m, nil
}
