// Package relay is the event function that sends reliable messages:
//
//	POST /events/relay
//
// It publishes what is due while it holds the rows, so a relay that dies has
// changed nothing, and any number may run at once. A message that one stream
// refuses never holds up the others.
package relay

import (
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
)

// Function is this package's line in the catalogue.
var Function = fn.Event("relay", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.EventHandler {
	r := &relayer{db: env.DB(), env: env}
	return r.relay
}

const (
	batchRows    = 500
	publishLimit = 2 * time.Second // the rows are locked meanwhile
)

type relayer struct {
	db  *store.DB
	env *fn.Env
}

// relay sends everything that is due, batch by batch, and has itself woken for
// what must be sent again. While NATS is away it stops after one batch: the
// messages keep their sends and are due again soon.
func (r *relayer) relay(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	sent := 0
	for {
		away := false
		relayed, err := r.db.RelayMessages(ctx, batchRows, func(ctx context.Context, due []store.DueMessage) ([]message.Result, error) {
			results := r.publish(ctx, due)
			for _, result := range results {
				away = away || result.Outcome == message.Away
			}
			return results, nil
		})
		for _, at := range relayed.Again {
			r.env.RelayAt(at)
		}
		sent += relayed.Rows
		c.Log("messages", sent)
		if err != nil || away || relayed.Rows < batchRows {
			return err
		}
	}
}

// publish sends each message as a CloudEvent whose id is the message's, and
// gives what became of each.
func (r *relayer) publish(ctx context.Context, due []store.DueMessage) []message.Result {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	messages := make([]bus.Message, len(due))
	results := make([]message.Result, len(due))
	for i, d := range due {
		event, err := eventOf(d)
		if err != nil {
			results[i] = message.Result{Outcome: message.Refused, Reason: err.Error()}
		}
		messages[i] = bus.Message{Subject: subjectOf(d), MsgID: d.MsgID, Event: event}
	}
	for i, err := range r.env.Bus().Publish(ctx, messages) {
		switch {
		case results[i].Outcome == message.Refused:
		case err == nil:
			results[i] = message.Result{Outcome: message.Taken}
		case errors.Is(err, bus.ErrRefused):
			results[i] = message.Result{Outcome: message.Refused, Reason: err.Error()}
		default:
			results[i] = message.Result{Outcome: message.Away, Reason: err.Error()}
		}
	}
	return results
}

func subjectOf(d store.DueMessage) string {
	if d.Kind == message.User {
		return bus.UserSubject(d.Destination)
	}
	return d.Destination
}

func eventOf(d store.DueMessage) (cloudevents.Event, error) {
	e := cloudevents.NewEvent()
	e.SetID(d.ID.String())
	e.SetSource("/sendonce/messages/" + d.From)
	e.SetType(d.Type)
	e.SetTime(d.CreatedAt)
	return e, e.SetData(cloudevents.ApplicationJSON, d.Data)
}
