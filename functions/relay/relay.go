// Package relay is the event function that publishes reliable messages and the events of tasks from
// the outbox in Postgres to NATS:
//
//	POST /events/relay
//
// It publishes rows while it has them locked, so a relay that dies has changed nothing, and any
// number may run at once. A sender's messages to one receiver keep their order, also while NATS is
// unavailable.
//
// A stream that is full, has no leader or does not answer is paused for 2 s, then 4 s, up to a
// minute, and after each pause a few messages are tried. The messages for it keep their order, their
// rows are not rewritten, and other streams are not affected. Only a message that a stream refuses
// alone, for example because its subject has reached a limit, is retried later and may be overtaken.
package relay

import (
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// Function is this package's line in the catalogue.
var Function = fn.Event("relay", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.EventHandler {
	r := &relayer{events: env.Events, messages: env.Messages, env: env}
	telemetry.Show(env.Metrics(), "the list of paused streams", env.Events.PausedStreams, func(s *metrics.Scrape, paused []string) {
		for _, name := range paused {
			s.Gauge("stream_paused", "1 while a stream takes nothing: it is full, has no leader or does not answer.", 1, "stream", name)
		}
	})
	return r.relay
}

const (
	batchMessages    = 500
	batchEvents      = 2000
	publishTimeout   = 2 * time.Second // during which the rows are locked
	unavailablePause = 2 * time.Second
	batchTime        = 10 * time.Second // one more batch of messages and of events takes at most this
	memory           = 16 << 20         // bytes: the store returns up to 4 MiB of messages or events at a time
)

type relayer struct {
	events   *events.Store
	messages *messages.Store
	env      *fn.Env
	forged   loglimit.Limit // log lines of messages with a destination that submit does not accept
}

// relay publishes all that is due, batches of messages and of events in turn, and schedules the next
// call. If NATS is unavailable it stops after a batch: no send is used up, and all rows stay due.
func (r *relayer) relay(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if err := c.Reserve(ctx, memory); err != nil {
		return err
	}
	var messageCount, eventCount int
	var messagesErr, eventsErr error
	messages, events := store.Relayed{More: true}, store.Relayed{More: true}
	for messages.More || events.More {
		if deadline, bounded := ctx.Deadline(); bounded && time.Until(deadline) < batchTime {
			r.env.WakeRelayAt(time.Time{}) // the next call continues
			break
		}
		if messages.More {
			messages, messagesErr = r.relayMessages(ctx)
			messageCount += messages.Rows
		}
		if events.More {
			events, eventsErr = r.relayEvents(ctx, &eventCount)
		}
	}
	c.Log("messages", messageCount, "events", eventCount)
	if err := errors.Join(messagesErr, eventsErr); err != nil {
		return err
	}
	if events.Away {
		r.env.WakeAgainAt(bus.WakeRelay, time.Now().Add(unavailablePause))
	}
	return r.scheduleNext(ctx)
}

// scheduleNext schedules a relay for the end of the next pause, and for when sent messages are due
// again, as the relay that sent them may have died before it scheduled that.
func (r *relayer) scheduleNext(ctx context.Context) error {
	next, err := r.events.NextRelay(ctx)
	if err == nil && !next.IsZero() {
		r.env.WakeAgainAt(bus.WakeRelay, fn.NotBefore(next, unavailablePause))
	}
	return err
}

// finishBatch schedules a relay for when the relayed messages are due again. It sets More to false
// after an error and while NATS is unavailable.
func (r *relayer) finishBatch(relayed store.Relayed, err error) (store.Relayed, error) {
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

// logStreams logs when a stream is paused or resumed, not the tries between.
func (r *relayer) logStreams(changes []store.StreamChange) {
	for _, c := range changes {
		if c.Reason == "" {
			r.env.Log.Info("stream resumed", "function", "relay", "stream", c.Stream)
		} else {
			r.env.Log.Warn("stream paused: its messages wait, other streams are not affected", "function", "relay", "stream", c.Stream, "reason", c.Reason)
		}
	}
}

func (r *relayer) relayMessages(ctx context.Context) (store.Relayed, error) {
	return r.finishBatch(r.messages.Relay(ctx, batchMessages, func(ctx context.Context, due []messages.Due) ([]message.Result, error) {
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return messageEvent(due[i]) }), nil
	}))
}

func (r *relayer) relayEvents(ctx context.Context, count *int) (store.Relayed, error) {
	return r.finishBatch(r.events.Relay(ctx, batchEvents, func(ctx context.Context, due []events.Due) ([]message.Result, error) {
		*count += len(due)
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return changeEvent(due[i]) }), nil
	}))
}

// publish publishes n messages and returns the result of each.
func (r *relayer) publish(ctx context.Context, n int, of func(i int) (bus.Message, error)) []message.Result {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	messages, unfit := make([]bus.Message, n), make([]error, n)
	for i := range messages {
		if messages[i], unfit[i] = of(i); unfit[i] != nil {
			messages[i] = bus.Message{} // is refused
		}
	}
	results := make([]message.Result, n)
	logged := false
	for i, err := range r.env.Bus().Publish(ctx, messages) {
		// Log one error of a batch, as they are alike. A refusal is written to the message's row.
		if err != nil && !errors.Is(err, bus.ErrRefused) && !logged {
			r.env.Log.Warn("publish", "function", "relay", "subject", task.MaskNumbers(messages[i].Subject), "error", err)
			logged = true
		}
		switch {
		case unfit[i] != nil:
			r.logForged(unfit[i])
			results[i] = message.Result{Outcome: message.Refused, Reason: unfit[i].Error()}
		case err == nil:
			results[i] = message.Result{Outcome: message.Taken}
		case errors.Is(err, bus.ErrRefused):
			results[i] = message.Result{Outcome: message.Refused, Reason: bus.PublicReason(err)}
		default:
			results[i] = message.Result{Outcome: message.Away, Reason: bus.PublicReason(err), Scope: scopeOf(err)}
		}
	}
	return results
}

// logForged logs, once a minute, that a message was refused for its destination. The row has the
// reason.
func (r *relayer) logForged(err error) {
	if !errors.Is(err, errDestination) {
		return
	}
	if unlogged, log := r.forged.Next(); log {
		r.env.Log.Error("a message has a destination that submit does not accept: something else wrote it", "function", "relay",
			"error", err, "unlogged", unlogged, "do", "GET /api/v1/messages/stuck?kind=sending, and find out which function was taken over")
	}
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
