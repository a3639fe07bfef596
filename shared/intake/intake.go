// Package intake takes reliable messages in, whatever carries them: a POST to
// /api/v1/messages or a frame of a WebSocket. Both are validated, acknowledged
// and repeated alike, because both end here.
//
// A message is acknowledged as saved once its row is committed. With ack accepted
// it is acknowledged once a stream has it; it will then be saved, unless what its
// durability does not survive happens first. The primary key, or the subject in
// the stream, decides whether a request is a repeat.
package intake

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Intake is where messages come in. Any number of goroutines may use it.
type Intake struct {
	db  *store.DB
	env *fn.Env
	two fn.TwoPhase

	asking   sync.Mutex // held by who asks what the stream gives
	promised atomic.Pointer[promise]
	woken    atomic.Int64 // when save was last woken to make room, in Unix seconds
}

// New does not touch the network.
func New(env *fn.Env) *Intake {
	return &Intake{db: env.DB(), env: env, two: env.Config.TwoPhase}
}

// Submitted is the answer to a valid request.
type Submitted struct {
	Ack      api.MessageAck
	SavedAt  time.Time // by the database's clock; zero while the message is only accepted
	Replayed bool      // an earlier request submitted the message
}

// Submit takes in one message of the caller c and returns when it is saved, or
// accepted. req must be valid. On error the message was not taken in, or nobody
// knows: the same request may be repeated.
func (in *Intake) Submit(ctx context.Context, c *fn.Call, req Request) (Submitted, error) {
	m, err := in.read(ctx, c, &req)
	if err != nil {
		return Submitted{}, err
	}
	if m.Refused != nil {
		return in.take(ctx, c, req, m)
	}
	admission, refused := in.db.AdmitMessage(ctx, c.Caller, m, in.two.Accepts(req.Ack))
	if refused != nil {
		m.Refused = refused
		return in.take(ctx, c, req, m)
	}
	defer admission.End() // also of a panic
	submitted, err := in.take(ctx, c, req, m)
	switch {
	case err != nil || submitted.Replayed: // what may have been saved all the same is in the next count
	case submitted.Ack.Ack == api.AckAccepted:
		admission.Accepted(submitted.Ack.AcceptSeq)
	default:
		admission.Saved()
	}
	return submitted, err
}

// take saves the message, or has a stream accept it; one that is refused is only
// looked up.
func (in *Intake) take(ctx context.Context, c *fn.Call, req Request, m *store.NewMessage) (Submitted, error) {
	switch {
	case !in.two.Accepts(req.Ack):
		return in.save(m)
	case m.Refused != nil:
		return in.refused(ctx, c, m)
	}
	accepted, err := in.accept(ctx, m)
	if !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrRefused) {
		return accepted, err
	}
	c.Log("not_accepted", err.Error())
	in.makeRoom()
	if !in.two.FailOpen {
		return Submitted{}, busy()
	}
	saved, err := in.save(m)
	saved.Ack.Ordering = bestEffort
	return saved, err
}

// makeRoom wakes save, once a second at most: the stream may have refused a message
// because it is full of what is saved.
func (in *Intake) makeRoom() {
	now := time.Now().Unix()
	if last := in.woken.Load(); last != now && in.woken.CompareAndSwap(last, now) {
		in.env.WakeSaveAt(time.Time{})
	}
}

// save commits a message and answers ack saved.
func (in *Intake) save(m *store.NewMessage) (Submitted, error) {
	queued := time.Now()
	outs, errs := in.db.SubmitMessages([]*store.NewMessage{m})
	in.env.Metrics().TwoPhase.DBQueue.Observe(time.Since(queued))
	if errs[0] != nil {
		return Submitted{}, errs[0]
	}
	out := outs[0]
	if out.Refused != nil {
		return Submitted{}, out.Refused
	}
	if out.State == message.Sending.String() { // of a repeat too: the first call may have died before it woke anybody
		in.env.WakeForMessage(m.To.Kind)
	}
	return Submitted{
		Ack: api.MessageAck{
			ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckSaved,
			Status: int(out.Status), State: out.State, Archived: out.Archived,
		},
		SavedAt: out.SavedAt, Replayed: out.Replayed,
	}, nil
}

// read makes a message of a valid request. A blocked word refuses it only if it
// is not known, as its caller's quota does: what was once accepted stays accepted.
func (in *Intake) read(ctx context.Context, c *fn.Call, req *Request) (*store.NewMessage, error) {
	from, err := c.ActFor(req.From)
	if err != nil {
		return nil, err
	}
	m, err := req.message(c.Caller.ID, from)
	if err != nil {
		return nil, err
	}
	blocked, err := in.db.Blocked(ctx, texts(m.Data))
	if err != nil {
		return nil, err
	}
	if blocked {
		m.Refused = task.Refuse(task.CodeBlocked, "the data holds a blocked word; change the text")
	}
	return m, nil
}
