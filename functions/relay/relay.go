// Package relay is the event function that publishes to NATS the reliable messages to subjects and users, and the events of
// tasks, messages, alerts and endpoints:
//
//	POST /events/relay
//
// A relay locks rows while it publishes them, so any number of relays may run at once. If a relay
// dies, its rows stay due. A single relay keeps the order of the messages of one sender to one receiver, even while NATS
// is unavailable. Several relays at once do not keep this order.
//
// Callers take turns. The relay publishes further events to the stream EVENTS only when deliver has recorded most of the
// earlier ones (see recordLimit), so the events of one caller do not fill the stream that all callers share.
//
// The relay pauses a stream that is full, has no leader or does not respond, for 2 s, then 4 s, up to a
// minute. After each pause the relay tries a few messages. The messages for the stream keep their order, their
// rows are not updated, and other streams are not affected, except those of the same group (message.Address.Stream).
// While MESSAGES or USERS is nearly full, messages of callers that used more of it lately than is free wait (see Store.Hold), and
// messages of other callers use the room that is left.
//
// If a stream does not accept one of the messages, for example because its subject has reached a limit, only this message
// waits for its next send. Newer messages may overtake it.
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

// Function publishes messages and events to NATS.
var Function = fn.Event("relay", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.EventHandler {
	r := &relayer{env: env}
	telemetry.CollectValue(env.Metrics(), "the list of paused streams", env.Events.PausedStreams, func(s *metrics.Scrape, paused []string) {
		for _, name := range paused {
			s.Gauge("stream_paused", "1 while a stream is paused: it is full, has no leader or does not respond.", 1, "stream", name)
		}
	})
	return r.relay
}

const (
	batchMessages    = 500
	batchEvents      = 2000
	publishTimeout   = 2 * time.Second  // limits how long the rows stay locked
	unavailablePause = 2 * time.Second  // before the next call, if NATS is unavailable or due rows remain
	maxBatchTime     = 10 * time.Second // of one batch of messages and one of events together
	reservedBytes    = 16 << 20         // of memory; the store returns at most about 2 MiB of messages, or 4 MiB of events, at a time
)

type relayer struct {
	env            *fn.Env
	recordLimit    recordLimit
	destinationLog loglimit.Limit // of logBadDestination
	holder         holder
}

// relay publishes all messages and events that are due, in alternating batches, and schedules the
// next call. If the time of the call does not suffice for all, the next call continues at once. If NATS is unavailable,
// relay stops after one batch of each: the rows stay due, and no send attempt is counted.
func (r *relayer) relay(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if err := c.Reserve(ctx, reservedBytes); err != nil {
		return err
	}
	c.LetOthersRun() // large calls of the trigger to other functions need not wait until this one ends
	var messageCount, eventCount int
	var messagesErr, eventsErr error
	lastMessages, lastEvents := store.Relayed{More: true}, store.Relayed{More: true} // the last batches
	for lastMessages.More || lastEvents.More {
		if deadline, bounded := ctx.Deadline(); bounded && time.Until(deadline) < maxBatchTime || r.env.IsDraining() {
			r.env.WakeRelayAt(time.Time{}) // the next call continues
			break
		}
		// Batches alternate, so new events need not wait for all messages to be published, nor new messages for all events.
		if messagesErr == nil {
			lastMessages, messagesErr = r.relayMessages(ctx)
			messageCount += lastMessages.Rows
		}
		atLimit := eventsErr == nil && r.recordLimit.isReached(ctx, r.env.Bus())
		if eventsErr == nil {
			lastEvents, eventsErr = r.relayEvents(ctx, atLimit, &eventCount)
		}
		if atLimit && lastEvents.More && lastEvents.Rows == 0 && !lastMessages.More { // only events beyond the limit are left
			if messagesErr != nil {
				break // the next call tries the messages again
			}
			select {
			case <-time.After(pauseAtLimit):
			case <-ctx.Done():
			}
		}
	}
	c.Log("messages", messageCount, "events", eventCount)
	if err := errors.Join(messagesErr, eventsErr); err != nil {
		return err
	}
	if lastEvents.BrokerUnavailable {
		r.env.WakeAgainAt(bus.WakeRelay, time.Now().Add(unavailablePause))
	}
	return r.scheduleNext(ctx)
}

// scheduleNext schedules a call for when the next message or event is due or a stream pause ends, but not within
// unavailablePause. Rows that other relays have locked or delayed count too, because another relay may die before it
// schedules a call.
func (r *relayer) scheduleNext(ctx context.Context) error {
	next, err := r.env.Events.NextRelay(ctx)
	if err == nil && !next.IsZero() {
		r.env.WakeAgainAt(bus.WakeRelay, fn.NotBefore(next, unavailablePause))
	}
	return err
}

// finishBatch schedules calls for when messages or events of the batch are due again, wakes deliver if a stream
// was paused, and logs paused and resumed streams. It sets More to false after an error or if NATS is unavailable.
func (r *relayer) finishBatch(relayed store.Relayed, err error) (store.Relayed, error) {
	for _, at := range relayed.NextTries {
		r.env.WakeRelayAt(at)
	}
	if relayed.StreamPaused {
		r.env.WakeDeliverAt(time.Time{}) // deliver trims the streams, in case the stream is full
	}
	relayed.More = relayed.More && err == nil && !relayed.BrokerUnavailable
	if err == nil {
		r.logStreams(relayed.Streams)
	}
	return relayed, err
}

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
	return r.finishBatch(r.env.Messages.Relay(ctx, batchMessages, r.holder.held(ctx, r.env), func(ctx context.Context, due []messages.Due) ([]message.Result, error) {
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return messageEvent(due[i]) }), nil
	}))
}

// relayEvents publishes a batch of events; at the limit of unrecorded events, only those for other streams than EVENTS. It adds
// the number of events to count, because a row of event_outbox may have several.
func (r *relayer) relayEvents(ctx context.Context, atLimit bool, count *int) (store.Relayed, error) {
	except := ""
	if atLimit {
		except = bus.StreamEvents
	}
	return r.finishBatch(r.env.Events.Relay(ctx, except, batchEvents, func(ctx context.Context, due []events.Due) ([]message.Result, error) {
		*count += len(due)
		r.recordLimit.count(len(due))
		return r.publish(ctx, len(due), func(i int) (bus.Message, error) { return outboxEvent(due[i]) }), nil
	}))
}

// publish publishes the n messages that build returns, and returns the result of each.
func (r *relayer) publish(ctx context.Context, n int, build func(i int) (bus.Message, error)) []message.Result {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	messages, buildErrs := make([]bus.Message, n), make([]error, n)
	for i := range messages {
		if messages[i], buildErrs[i] = build(i); buildErrs[i] != nil {
			messages[i] = bus.Message{} // Publish refuses a message without a subject
		}
	}
	results := make([]message.Result, n)
	logged := false
	for i, err := range r.env.Bus().Publish(ctx, messages) {
		// The errors of a batch are usually the same, so only one is logged. A refusal is not logged: the row of the
		// message, or the dead letter of the event, has the reason.
		if err != nil && !errors.Is(err, bus.ErrRefused) && !logged {
			r.env.Log.Warn("publish failed", "function", "relay", "subject", task.MaskNumbers(messages[i].Subject), "error", err)
			logged = true
		}
		results[i] = r.result(buildErrs[i], err)
	}
	return results
}

// result returns the result of one message from the errors of building and publishing it.
func (r *relayer) result(buildErr, publishErr error) message.Result {
	switch {
	case errors.Is(buildErr, errEndpointChanged): // nothing to publish: the row is done
		return message.Result{Outcome: message.Accepted}
	case buildErr != nil:
		r.logBadDestination(buildErr)
		return message.Result{Outcome: message.Refused, Reason: buildErr.Error()}
	case publishErr == nil:
		return message.Result{Outcome: message.Accepted}
	case errors.Is(publishErr, bus.ErrRefused):
		return message.Result{Outcome: message.Refused, Reason: bus.PublicReason(publishErr)}
	default:
		return message.Result{Outcome: message.Unavailable, Reason: bus.PublicReason(publishErr), Scope: scopeOf(publishErr)}
	}
}

// logBadDestination logs errBadDestination, at most once a minute.
func (r *relayer) logBadDestination(err error) {
	if !errors.Is(err, errBadDestination) {
		return
	}
	if unlogged, logNow := r.destinationLog.Next(); logNow {
		r.env.Log.Error("a message in the database has an invalid destination: no submission wrote it, because submissions are checked", "function", "relay",
			"error", err, "unlogged", unlogged, "do", "list these messages with GET /api/v1/messages/stuck?kind=sending, and find out which function was compromised")
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
