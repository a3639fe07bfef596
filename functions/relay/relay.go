// Package relay is the event function that publishes what Postgres holds for
// NATS, reliable messages and the events of tasks:
//
//	POST /events/relay
//
// It publishes what is due while it holds the rows, so a relay that dies has
// changed nothing, and any number may run at once. What one stream refuses or
// cannot take never holds up anything else. While NATS is away every message keeps
// its place, and so a sender's messages to one receiver their order; as away
// counts a stream, too, that no server serves. What is for a stream that is full,
// or does not answer, steps aside and may be overtaken by what is saved meanwhile.
package relay

import (
	"context"
	"errors"
	"slices"
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
	batchMessages = 500
	batchEvents   = 4               // rows, of at most 500 events each
	publishLimit  = 2 * time.Second // the rows are locked meanwhile
	awayPause     = 2 * time.Second
)

type relayer struct {
	db  *store.DB
	env *fn.Env
}

// batch is what one batch came to.
type batch struct {
	rows   int
	more   bool // there may be more that is due
	away   bool // it would come again at once
	rested bool // some of it will come again after a pause
}

func (b batch) goesOn() bool { return b.more && !b.away }

// relay publishes all that is due, messages and events in turn, batch by batch,
// and has itself woken for what must be sent again. While NATS, or the stream of
// events, is away they pause after a batch: nothing is used up, and all is due as
// before.
func (r *relayer) relay(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	var sent, told int
	var messagesErr, eventsErr error
	messages, events := batch{more: true}, batch{more: true}
	began := time.Now()
	for messages.goesOn() || events.goesOn() {
		if messages.goesOn() {
			if messages, messagesErr = r.relayMessages(ctx); messagesErr != nil {
				messages.more = false
			}
			if messages.rested && time.Since(began) > awayPause {
				messages.more = false // what rested first is due again
			}
			sent += messages.rows
		}
		if events.goesOn() {
			if events, eventsErr = r.relayEvents(ctx); eventsErr != nil {
				events.more = false
			}
			told += events.rows
		}
	}
	c.Log("messages", sent, "events", told)
	if err := errors.Join(messagesErr, eventsErr); err != nil {
		return err
	}
	if events.away {
		r.env.Again(bus.WakeRelay, time.Now().Add(awayPause))
	}
	return r.scheduleNext(ctx)
}

// scheduleNext ends the pause of what met nobody, and makes up for a relay that
// died before it could say when the messages that it had sent are due again.
func (r *relayer) scheduleNext(ctx context.Context) error {
	next, err := r.db.NextMessage(ctx)
	if err == nil && !next.IsZero() {
		r.env.Again(bus.WakeRelay, fn.NotBefore(next, awayPause))
	}
	return err
}

func (r *relayer) relayMessages(ctx context.Context) (b batch, err error) {
	relayed, err := r.db.RelayMessages(ctx, batchMessages, func(ctx context.Context, due []store.DueMessage) ([]message.Result, error) {
		results := r.publish(ctx, len(due), func(i int) (bus.Message, error) { return ofMessage(due[i]) })
		b.away = !slices.ContainsFunc(results, func(r message.Result) bool { return !r.InPlace })
		b.rested = slices.ContainsFunc(results, func(r message.Result) bool { return r.Outcome == message.Away && !r.InPlace })
		return results, nil
	})
	for _, at := range relayed.Again {
		r.env.RelayAt(at)
	}
	b.rows, b.more = relayed.Rows, relayed.Rows == batchMessages
	return b, err
}

func (r *relayer) relayEvents(ctx context.Context) (b batch, err error) {
	rows, err := r.db.RelayEvents(ctx, batchEvents, func(ctx context.Context, due []store.DueEvent) ([]message.Result, error) {
		results := r.publish(ctx, len(due), func(i int) (bus.Message, error) { return ofEvent(due[i]) })
		b.rows = len(due)
		b.away = slices.ContainsFunc(results, func(r message.Result) bool { return r.Outcome == message.Away })
		return results, nil
	})
	b.more = rows == batchEvents
	return b, err
}

// publish gives what became of each of n messages.
func (r *relayer) publish(ctx context.Context, n int, of func(i int) (bus.Message, error)) []message.Result {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	messages, unfit := make([]bus.Message, n), make([]error, n)
	for i := range messages {
		messages[i], unfit[i] = of(i)
	}
	results := make([]message.Result, n)
	for i, err := range r.env.Bus().Publish(ctx, messages) {
		switch {
		case unfit[i] != nil:
			results[i] = message.Result{Outcome: message.Refused, Reason: unfit[i].Error()}
		case err == nil:
			results[i] = message.Result{Outcome: message.Taken}
		case errors.Is(err, bus.ErrRefused):
			results[i] = message.Result{Outcome: message.Refused, Reason: err.Error()}
		default:
			results[i] = message.Result{Outcome: message.Away, Reason: err.Error(), InPlace: !errors.Is(err, bus.ErrStreamAway)}
		}
	}
	return results
}
