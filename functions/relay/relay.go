// Package relay is the event function that publishes what Postgres holds for
// NATS, reliable messages and the events of tasks:
//
//	POST /events/relay
//
// It publishes what is due while it holds the rows, so a relay that dies has
// changed nothing, and any number may run at once. While a stream is full, has no
// leader or does not answer, nothing is published to it for 2 s, then 4 s, up to a
// minute, and after each pause a few messages are tried; what waits for it keeps
// its place and is not rewritten, and other streams go on. Only what a stream
// refuses by itself, as a subject that has reached a limit of its own, steps aside
// and may be overtaken. While NATS is away everything keeps its place, and so a
// sender's messages to one receiver their order.
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
	env.Metrics().OnScrapeStreams(env.DB().PausedStreams)
	return r.relay
}

const (
	batchMessages = 500
	batchEvents   = 2000
	publishLimit  = 2 * time.Second // the rows are locked meanwhile
	awayPause     = 2 * time.Second
	batchTime     = 10 * time.Second // that one more batch of both may take
	charge        = 16 << 20         // bytes: the store gives 4 MiB of messages at a time
)

type relayer struct {
	db  *store.DB
	env *fn.Env
}

// relay publishes all that is due, messages and events in turn, batch by batch,
// and has itself woken for what comes later. While NATS is away they pause after a
// batch: nothing is used up, and all is due as before.
func (r *relayer) relay(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if err := c.Reserve(ctx, charge); err != nil {
		return err
	}
	var sent, told int
	var messagesErr, eventsErr error
	messages, events := store.Relayed{More: true}, store.Relayed{More: true}
	for messages.More || events.More {
		if deadline, bounded := ctx.Deadline(); bounded && time.Until(deadline) < batchTime {
			r.env.WakeRelayAt(time.Time{}) // the next call goes on
			break
		}
		if messages.More {
			messages, messagesErr = r.relayMessages(ctx)
			sent += messages.Rows
		}
		if events.More {
			events, eventsErr = r.relayEvents(ctx, &told)
		}
	}
	c.Log("messages", sent, "events", told)
	if err := errors.Join(messagesErr, eventsErr); err != nil {
		return err
	}
	if events.Away {
		r.env.WakeAgainAt(bus.WakeRelay, time.Now().Add(awayPause))
	}
	return r.scheduleNext(ctx)
}

// scheduleNext has the relay woken at the end of the next pause, and makes up for
// one that died before it could say when the messages that it had sent are due
// again.
func (r *relayer) scheduleNext(ctx context.Context) error {
	next, err := r.db.NextRelay(ctx)
	if err == nil && !next.IsZero() {
		r.env.WakeAgainAt(bus.WakeRelay, fn.NotBefore(next, awayPause))
	}
	return err
}

// settled has the relay woken when what was relayed is due again, and gives what
// follows of it: nothing more after an error or while the broker is away.
func (r *relayer) settled(relayed store.Relayed, err error) (store.Relayed, error) {
	for _, at := range relayed.Again {
		r.env.WakeRelayAt(at)
	}
	if relayed.Full {
		r.env.WakeDeliverAt(time.Time{}) // which trims the streams
	}
	relayed.More = relayed.More && err == nil && !relayed.Away
	if err == nil {
		r.logStreams(relayed.Streams)
	}
	return relayed, err
}

// logStreams writes one line when a stream is paused or resumed, and none for the
// tries between.
func (r *relayer) logStreams(changes []store.StreamChange) {
	for _, c := range changes {
		if c.Reason == "" {
			r.env.Log.Info("stream resumed", "function", "relay", "stream", c.Stream)
		} else {
			r.env.Log.Warn("stream paused: what is for it waits, other streams go on", "function", "relay", "stream", c.Stream, "reason", c.Reason)
		}
	}
}

func (r *relayer) relayMessages(ctx context.Context) (store.Relayed, error) {
	return r.settled(r.db.RelayMessages(ctx, batchMessages, func(ctx context.Context, due []store.DueMessage) ([]message.Result, error) {
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return ofMessage(due[i]) }), nil
	}))
}

func (r *relayer) relayEvents(ctx context.Context, told *int) (store.Relayed, error) {
	return r.settled(r.db.RelayEvents(ctx, batchEvents, func(ctx context.Context, due []store.DueEvent) ([]message.Result, error) {
		*told += len(due)
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return ofEvent(due[i]) }), nil
	}))
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
	logged := false
	for i, err := range r.env.Bus().Publish(ctx, messages) {
		// Those of one batch fail alike. A refused one is no fault of the broker, and its row says why.
		if err != nil && !errors.Is(err, bus.ErrRefused) && !logged {
			r.env.Log.Warn("publish", "function", "relay", "subject", messages[i].Subject, "error", err)
			logged = true
		}
		switch {
		case unfit[i] != nil:
			results[i] = message.Result{Outcome: message.Refused, Reason: unfit[i].Error()}
		case err == nil:
			results[i] = message.Result{Outcome: message.Taken}
		case errors.Is(err, bus.ErrRefused):
			results[i] = message.Result{Outcome: message.Refused, Reason: bus.Reason(err)}
		default:
			results[i] = message.Result{Outcome: message.Away, Reason: bus.Reason(err), Scope: scopeOf(err)}
		}
	}
	return results
}

func scopeOf(err error) message.Scope {
	switch {
	case errors.Is(err, bus.ErrSubjectUnavailable):
		return message.OneMessage
	case errors.Is(err, bus.ErrStreamUnavailable):
		return message.OneStream
	}
	return message.AllStreams
}
