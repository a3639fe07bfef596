// Package intake validates and accepts submitted messages, from a POST to /api/v1/messages or a
// frame of a WebSocket, with the same rules and the same acknowledgements for both.
//
// A message is acknowledged as saved once its row is committed, or as accepted once a stream has it.
// An accepted message will be saved, unless a failure happens first against which the stream's
// durability does not protect. A request is a repeat if the primary key, or the subject in the stream,
// is taken.
package intake

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// Intake accepts messages. Any number of goroutines may use it.
type Intake struct {
	admin    *admin.Store
	messages *messages.Store
	env      *fn.Env
	twoPhase settings.TwoPhase

	knownDurability cache.Value[bus.Durability]
	madeRoomAt      atomic.Int64 // when save was last woken to make room, in Unix seconds
}

// New does not use the network.
func New(env *fn.Env) *Intake {
	in := &Intake{admin: env.Admin, messages: env.Messages, env: env, twoPhase: env.Config.TwoPhase}
	in.knownDurability.Timeout, in.knownDurability.Keep = lookUpTimeout, durabilityTTL
	in.knownDurability.Read = func(ctx context.Context) (bus.Durability, error) {
		return env.Bus().Durability(ctx, in.twoPhase.MonitorURL)
	}
	return in
}

// Submitted is the result of a valid request.
type Submitted struct {
	Ack      api.MessageAck
	SavedAt  time.Time // by the database's clock; zero while the message is only accepted
	Replayed bool      // an earlier request submitted the message
}

// Submit returns when the message of the caller is saved or accepted. req must be valid. After an
// error it is unknown whether the message is saved: repeat the same request.
func (in *Intake) Submit(ctx context.Context, c *fn.Call, req Request) (Submitted, error) {
	m, err := in.newMessage(ctx, c, &req)
	if err != nil {
		return Submitted{}, err
	}
	if m.Refused != nil {
		return in.saveOrAccept(ctx, c, req, m)
	}
	admission, refused := in.messages.Admit(ctx, c.Caller, m, in.twoPhase.Accepts(req.Ack))
	if refused != nil {
		m.Refused = refused
		return in.saveOrAccept(ctx, c, req, m)
	}
	defer admission.End()
	submitted, err := in.saveOrAccept(ctx, c, req, m)
	switch {
	case err != nil || submitted.Replayed: // if the message was saved nevertheless, the next count includes it
	case submitted.Ack.Ack == api.AckAccepted:
		admission.Accepted(submitted.Ack.AcceptSeq)
	default:
		admission.Saved()
	}
	return submitted, err
}

// saveOrAccept saves the message, or publishes it to the stream of accepted messages. For a
// refused message it only looks up whether it was accepted before.
func (in *Intake) saveOrAccept(ctx context.Context, c *fn.Call, req Request, m *messages.Submission) (Submitted, error) {
	switch {
	case !in.twoPhase.Accepts(req.Ack):
		return in.save(m)
	case m.Refused != nil:
		return in.respondToRefused(ctx, c, m)
	}
	accepted, err := in.accept(ctx, m)
	if !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrRefused) {
		return accepted, err
	}
	c.Log("not_accepted", err.Error())
	in.makeRoom()
	if !in.twoPhase.FailOpen {
		return Submitted{}, errBusy()
	}
	saved, err := in.save(m)
	saved.Ack.Ordering = bestEffort
	return saved, err
}

// makeRoom wakes save, at most once a second: the stream may have refused a message because it is
// full of messages that are already saved.
func (in *Intake) makeRoom() {
	now := time.Now().Unix()
	if last := in.madeRoomAt.Load(); last != now && in.madeRoomAt.CompareAndSwap(last, now) {
		in.env.WakeSaveAt(time.Time{})
	}
}

// save commits a message and returns ack saved.
func (in *Intake) save(m *messages.Submission) (Submitted, error) {
	queued := time.Now()
	results, errs := in.messages.Submit([]*messages.Submission{m})
	in.env.Metrics().TwoPhase.DBQueue.Observe(time.Since(queued))
	if errs[0] != nil {
		return Submitted{}, errs[0]
	}
	result := results[0]
	if result.Refused != nil {
		return Submitted{}, result.Refused
	}
	if result.State == message.Sending.String() { // also for a repeat: the process of the first call may have died before
		in.env.WakeForMessage(m.To.Kind)
	}
	return Submitted{
		Ack: api.MessageAck{
			ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckSaved,
			Status: int(result.Status), State: result.State, Archived: result.Archived,
		},
		SavedAt: result.SavedAt, Replayed: result.Replayed,
	}, nil
}

// newMessage converts a valid request. It sets the field Refused of a message that has a blocked word, or
// whose address may not be called. Such a refusal, like that of the caller's quota, applies only to a new
// message: a repeat gets the result of the first request.
func (in *Intake) newMessage(ctx context.Context, c *fn.Call, req *Request) (*messages.Submission, error) {
	from, err := c.ActFor(req.From)
	if err != nil {
		return nil, err
	}
	m, err := newSubmission(req, c.Caller.ID, from)
	if err != nil {
		return nil, err
	}
	if m.To.Kind == message.URL {
		var bad decode.Rules
		bad.Reachable("to", m.To.Name, in.env.Config.OutgoingNetworks)
		m.Refused = task.Invalid(bad)
	}
	blocked, err := in.admin.Blocked(ctx, allText(m.Data))
	if err != nil {
		return nil, err
	}
	if blocked {
		m.Refused = task.Refuse(task.CodeBlocked, "the data holds a blocked word; change the text")
	}
	return m, nil
}
