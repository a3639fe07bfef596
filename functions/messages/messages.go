// Package messages is the reliable message service. A caller submits a message, which is sent until its receiver confirms it, and
// reads its state:
//
//	POST /api/v1/messages
//	GET  /api/v1/messages/{id}
//	GET  /api/v1/messages/by-key/{client_msg_id}
//	POST /api/v1/messages/{id}/received
//
// It lists the messages between two users with each user's read cursor, lists who wrote to a user, and moves read cursors:
//
//	GET  /api/v1/messages?between=ann,bob
//	GET  /api/v1/messages/peers
//	POST /api/v1/messages/reveal
//	POST /api/v1/messages/read
//
// An operator lists stuck messages, sends them again (redrive) or stops sending them (abandon):
//
//	GET  /api/v1/messages/stuck
//	POST /api/v1/messages/{id}/redrive, /api/v1/messages/redrive
//	POST /api/v1/messages/{id}/abandon, /api/v1/messages/abandon
//
// A 200 means that the message is committed to the database and will be sent until its receiver has confirmed it or it was sent
// max_sends times. A 202 (ack accepted) means that the message is stored in a stream and will be committed later. Until then a
// failure can lose the message; the field durability of the response says which failures it survives. A receiver gets the
// message's id as the id of the CloudEvent, not as part of the data.
package messages

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// Function serves the routes of reliable messages.
var Function = fn.HTTP("messages", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	h := &handlers{messages: env.Messages, env: env, intake: intake.New(env)}
	if env.Config.TwoPhase.Enabled && env.Bus() != nil {
		telemetry.CollectValue(env.Metrics(), "the stream of accepted messages", env.Bus().AcceptState, showAccepted)
	}
	const root = "/api/v1/messages"
	return fn.Routes{
		"POST " + root:                            fn.JSON(fn.Submitter, h.submit).MaxBody(intake.MaxBody),
		"GET " + root + "/{id}":                   fn.Query(fn.Submitter, h.message).Or(fn.Viewer),
		"GET " + root + "/by-key/{client_msg_id}": fn.Query(fn.Submitter, h.byKey),
		"POST " + root + "/{id}/received":         fn.JSON(fn.Receiver, h.confirm),

		"GET " + root:              fn.Query(fn.Submitter, h.conversation).Or(fn.Receiver).Or(fn.Viewer).Paged(),
		"GET " + root + "/peers":   fn.Query(fn.Submitter, h.peers).Or(fn.Receiver).Or(fn.Viewer).Paged(),
		"POST " + root + "/reveal": fn.JSON(fn.Submitter, h.reveal).Or(fn.Viewer),
		"POST " + root + "/read":   fn.JSON(fn.Submitter, h.markRead).Or(fn.Receiver),

		"GET " + root + "/stuck":         fn.List(fn.Admin, h.stuck).Or(fn.Viewer),
		"POST " + root + "/{id}/redrive": fn.Query(fn.Admin, h.redrive),
		"POST " + root + "/{id}/abandon": fn.JSON(fn.Admin, h.abandon),
		"POST " + root + "/redrive":      fn.JSON(fn.Admin, h.redriveStuck),
		"POST " + root + "/abandon":      fn.JSON(fn.Admin, h.abandonStuck),
	}
}

func showAccepted(s *metrics.Scrape, state bus.AcceptState) {
	s.Gauge("stream_len", "Messages in the stream of accepted messages, including saved ones that are kept for deduplication.", float64(state.Messages))
	for durable, n := range state.Pending {
		s.Gauge("pending", "Accepted messages that a durable consumer has not acknowledged.", float64(n), "durable", durable)
	}
}

// resourceName is what error texts call the resource that {id} identifies.
const resourceName = "message"

// handlers has the handlers of all routes.
type handlers struct {
	messages *messages.Store
	env      *fn.Env
	intake   *intake.Intake
}

func (h *handlers) submit(ctx context.Context, c *fn.Call, req intake.Request) (any, error) {
	submitted, err := h.intake.Submit(ctx, c, req)
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

func (h *handlers) message(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	id, err := c.ID(resourceName)
	if err != nil {
		return nil, err
	}
	return h.ownMessage(ctx, c, id)
}

// byKeyRequest adds validation to api.MessageByKeyRequest.
type byKeyRequest api.MessageByKeyRequest

func (r *byKeyRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.User("from", r.From)
	return bad
}

func (h *handlers) byKey(ctx context.Context, c *fn.Call, req byKeyRequest) (any, error) {
	key := c.PathValue("client_msg_id")
	if !task.ValidKey(key) {
		return nil, task.Invalid([]task.Field{{Name: "client_msg_id", Message: task.KeyRule}})
	}
	from, err := c.ActFor(req.From)
	if err != nil {
		return nil, err
	}
	return h.ownMessage(ctx, c, message.ID(c.Caller.ID, from, key))
}

// ownMessage returns a message of the caller. The error is not_found for another caller's message, unless the caller is an admin
// or a viewer.
func (h *handlers) ownMessage(ctx context.Context, c *fn.Call, id task.ID) (api.MessageResponse, error) {
	return h.readableMessage(ctx, c, id, func(messages.Detail) bool { return false })
}

// readableMessage is ownMessage, but does not hide another caller's message if visible returns true.
func (h *handlers) readableMessage(ctx context.Context, c *fn.Call, id task.ID, visible func(m messages.Detail) bool) (api.MessageResponse, error) {
	m, err := h.messages.ByID(ctx, id)
	switch {
	case task.CodeOf(err) == task.CodeNotFound, err == nil && m.CallerID != c.Caller.ID && !c.ReadsAll() && !visible(m):
		// A hidden message takes as long as a missing one: otherwise the response time would reveal that the message exists.
		return h.acceptedMessage(ctx, c, id)
	case err != nil:
		return api.MessageResponse{}, err
	}
	return messageResponse(c, m), nil
}

// pageOf returns a page of messages; next_after is the id of its last message.
func pageOf(c *fn.Call, found []messages.Detail, more bool) api.Page[api.MessageResponse] {
	convert := func(m messages.Detail) api.MessageResponse { return messageResponse(c, m) }
	return fn.PageOf(found, more, convert, func(m messages.Detail) task.ID { return m.ID })
}

func messageNotFound() error { return task.Refuse(task.CodeNotFound, "no such "+resourceName) }

// shownTo returns the address of a message for the caller. A viewer sees only the host of another caller's URL.
func shownTo(c *fn.Call, to message.Address, owner int64) string {
	if to.Kind == message.URL && owner != c.Caller.ID {
		return c.ShownURL(to.Name)
	}
	return to.String()
}

// messageResponse converts a saved message to a response for the caller.
func messageResponse(c *fn.Call, m messages.Detail) api.MessageResponse {
	receipts := make([]api.Receipt, len(m.Receipts))
	for i, r := range m.Receipts {
		receipts[i] = api.Receipt{Consumer: r.Consumer, ConfirmedAt: r.ConfirmedAt.UTC(), SendNo: int(r.SendNo)}
	}
	return api.MessageResponse{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: shownTo(c, m.To(), m.CallerID),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		Status: int(m.Status), State: m.State(), Stuck: m.Stuck(), Confirm: m.Confirm,
		MaxSends: int(m.MaxSends), RemainingSends: int(m.Remaining), Epoch: int(m.Epoch),
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: receipts, LastError: m.LastError, FinishedBy: m.FinishedBy,
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, DeliveredAt: fn.Instant(m.DeliveredAt),
		NextSendAt: fn.Instant(m.NextAt), SentAt: fn.Instant(m.SentAt), CreatedAt: m.CreatedAt.UTC(), UpdatedAt: m.UpdatedAt.UTC(),
		Archived: m.Archived,
	}
}
