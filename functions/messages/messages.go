// Package messages is the reliable message service (seed 002): a service hands a
// message over and can be sure that its receiver gets it, and learns of it:
//
//	POST /api/v1/messages
//	GET  /api/v1/messages/{id}
//	GET  /api/v1/messages/by-key/{client_msg_id}
//	POST /api/v1/messages/{id}/received
//
// what two users sent to each other, how far each of them has read, and who wrote
// to a user:
//
//	GET  /api/v1/messages?between=ann,bob
//	GET  /api/v1/messages/peers
//	POST /api/v1/messages/read
//
// and what an operator does about those that went wrong:
//
//	GET  /api/v1/messages/stuck
//	POST /api/v1/messages/{id}/redrive, /api/v1/messages/redrive
//	POST /api/v1/messages/{id}/abandon, /api/v1/messages/abandon
//
// A 2xx means that the message is committed and will be sent until its receiver
// has confirmed it or its sends are used up. With ack accepted (seed 004) it
// means that a stream holds the message and it will be committed, unless what the
// answer's durability does not survive happens first. The id travels as the id of the
// CloudEvent: the seed put it in front of the text, where no one can tell it from
// the text any more.
package messages

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Function is this package's line in the catalogue.
var Function = fn.HTTP("messages", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	p := &post{db: env.DB(), env: env, intake: intake.New(env)}
	if env.Config.TwoPhase.Enabled && env.Bus() != nil {
		env.Metrics().OnScrape(env.Bus().AcceptState)
	}
	const root = "/api/v1/messages"
	return fn.Routes{
		"POST " + root:                            fn.JSON(fn.Submitter, p.submit).MaxBody(intake.MaxBody),
		"GET " + root + "/{id}":                   fn.Query(fn.Submitter, p.message),
		"GET " + root + "/by-key/{client_msg_id}": fn.Query(fn.Submitter, p.byKey),
		"POST " + root + "/{id}/received":         fn.JSON(fn.Receiver, p.received),

		"GET " + root:            fn.Query(fn.Submitter, p.conversation).Or(fn.Receiver).Pages(),
		"GET " + root + "/peers": fn.Query(fn.Submitter, p.peers).Or(fn.Receiver).Pages(),
		"POST " + root + "/read": fn.JSON(fn.Submitter, p.markRead).Or(fn.Receiver),

		"GET " + root + "/stuck":         fn.List(fn.Admin, p.stuck),
		"POST " + root + "/{id}/redrive": fn.Query(fn.Admin, p.redrive),
		"POST " + root + "/{id}/abandon": fn.JSON(fn.Admin, p.abandon),
		"POST " + root + "/redrive":      fn.JSON(fn.Admin, p.redriveStuck),
		"POST " + root + "/abandon":      fn.JSON(fn.Admin, p.abandonStuck),
	}
}

// oneMessage is what {id} names.
const oneMessage = "message"

// post is where messages are handed in.
type post struct {
	db     *store.DB
	env    *fn.Env
	intake *intake.Intake
}

// nothing is the request of a route that takes none.
type nothing struct{}

func (p *post) submit(ctx context.Context, c *fn.Call, req intake.Request) (any, error) {
	submitted, err := p.intake.Submit(ctx, c, req)
	if err != nil {
		return nil, err
	}
	c.Header().Set("Location", "/api/v1/messages/"+submitted.Ack.ServerMsgID)
	if submitted.Replayed {
		c.Header().Set("Idempotency-Replayed", "true")
	}
	if submitted.Ack.Ack == api.AckAccepted {
		c.Status(http.StatusAccepted)
	}
	return submitted.Ack, nil
}

func (p *post) message(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneMessage)
	if err != nil {
		return nil, err
	}
	return p.own(ctx, c, id)
}

func (p *post) byKey(ctx context.Context, c *fn.Call, req byKeyRequest) (any, error) {
	key := c.PathValue("client_msg_id")
	if !task.ValidKey(key) {
		return nil, task.Invalid([]task.Field{{Name: "client_msg_id", Message: task.KeyRule}})
	}
	from, err := c.ActFor(req.From)
	if err != nil {
		return nil, err
	}
	return p.own(ctx, c, message.ID(c.Caller.ID, from, key))
}

// own gives a message to who saved it; another caller's does not exist, except
// for an admin.
func (p *post) own(ctx context.Context, c *fn.Call, id task.ID) (any, error) {
	m, err := p.db.Message(ctx, id)
	switch {
	case task.CodeOf(err) == task.CodeNotFound, err == nil && m.CallerID != c.Caller.ID && !c.May(fn.Admin):
		return p.unsaved(ctx, c, id) // another caller's too: it takes as long as one that does not exist
	case err != nil:
		return nil, err
	}
	return wire(m), nil
}

func noMessage() error { return task.Refuse(task.CodeNotFound, "no such "+oneMessage) }

// wire is a message as its sender and an operator see it.
func wire(m store.MessageDetail) api.MessageResponse {
	receipts := make([]api.Receipt, len(m.Receipts))
	for i, r := range m.Receipts {
		receipts[i] = api.Receipt{Consumer: r.Consumer, ConfirmedAt: r.ConfirmedAt.UTC(), SendNo: int(r.SendNo)}
	}
	return api.MessageResponse{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: m.To().String(),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		Status: int(m.Status), State: m.State(), Stuck: m.Stuck(), Confirm: m.Confirm,
		MaxSends: int(m.MaxSends), RemainingSends: int(m.Remaining), Epoch: int(m.Epoch),
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: receipts, LastError: m.LastError, FinishedBy: m.FinishedBy,
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, DeliveredAt: fn.Instant(m.DeliveredAt),
		NextSendAt: fn.Instant(m.NextAt), SentAt: fn.Instant(m.SentAt), CreatedAt: m.CreatedAt.UTC(), UpdatedAt: m.UpdatedAt.UTC(),
		Archived: m.Archived,
	}
}
