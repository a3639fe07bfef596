// Package messages is the reliable message service. A caller submits a message and reads its state. A receiver confirms the
// message:
//
//	POST /api/v1/messages
//	GET  /api/v1/messages/{id}
//	GET  /api/v1/messages/by-key/{client_msg_id}
//	POST /api/v1/messages/{id}/received
//
// The service lists the messages between two users with each user's read cursor, lists who wrote to a user, returns the data of
// messages for the console (reveal), and moves read cursors:
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
// A 200 means that the message is committed to the database. It is sent until it is finished, abandoned or sent max_sends times. It
// is finished when expected_receipts receivers have confirmed it or, if it requires no confirmation, after one successful send. A 202
// (ack accepted) means that the message is stored in a stream and will be committed later, unless another message with the same
// client_msg_id is committed first. Until then a failure can lose the message; the field durability of the response says which
// failures the message survives. A receiver gets the message's id as the id of the CloudEvent, not as part of the data.
package messages

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// Function serves the routes of reliable messages.
var Function = fn.HTTP("messages", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	h := &handlers{env, intake.New(env)}
	if env.Config.TwoPhase.Enabled && env.Bus() != nil {
		telemetry.CollectValue(env.Metrics(), "the stream of accepted messages", env.Bus().AcceptState, showAccepted)
	}
	const root = "/api/v1/messages"
	return fn.Routes{
		"POST " + root:                            fn.JSON(fn.Submitter, h.submit).MaxBody(intake.MaxBody),
		"GET " + root + "/{id}":                   fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, resourceName, h.message)).Or(fn.Viewer),
		"GET " + root + "/by-key/{client_msg_id}": fn.Parameters(fn.Submitter, h.byKey),
		"POST " + root + "/{id}/received":         fn.JSON(fn.Receiver, fn.WithID((*fn.Call).ID, resourceName, h.confirm)),

		"GET " + root:              fn.Parameters(fn.Submitter, h.conversation).Or(fn.Receiver).Or(fn.Viewer).Paged(),
		"GET " + root + "/peers":   fn.Parameters(fn.Submitter, h.peers).Or(fn.Receiver).Or(fn.Viewer).Paged(),
		"POST " + root + "/reveal": fn.JSON(fn.Submitter, h.reveal).Or(fn.Viewer),
		"POST " + root + "/read":   fn.JSON(fn.Submitter, h.markRead).Or(fn.Receiver),

		"GET " + root + "/stuck":         fn.Read(fn.Admin, h.stuck).Or(fn.Viewer),
		"POST " + root + "/{id}/redrive": fn.Parameters(fn.Admin, fn.WithID((*fn.Call).ID, resourceName, h.redrive)),
		"POST " + root + "/{id}/abandon": fn.JSON(fn.Admin, fn.WithID((*fn.Call).ID, resourceName, h.abandon)),
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
