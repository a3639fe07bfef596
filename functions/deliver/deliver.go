// Package deliver is the event function that posts to URLs: events of tasks, endpoints and alerts to webhook endpoints and
// callback URLs, and reliable messages to the URLs of their receivers.
//
//	POST /events/deliver
//
// A call with the event of a task, an endpoint or an alert records a delivery of the event for each endpoint that subscribes to it,
// and for the callback URL of the task. A call with a tick claims due deliveries and messages under a lease, posts them outside a
// transaction, and settles them. If the process dies, they are posted again when their leases end, with the same webhook-id.
//
// Each process limits its concurrent posts of webhooks and, separately, those of messages: in total, to each destination, and of each
// account (a quarter of the total). An account is a limited operator (an admin with queues) with the callers that it created, or any
// other single caller. So a slow receiver does not delay other receivers for long.
//
// A chat robot receives a text instead of the event. If the robot has a secret, the text is signed as the robot's vendor defines.
//
// deliver also removes old messages from the streams EVENTS, MESSAGES and USERS, and raises and clears the alerts of streams that
// are nearly full.
//
// If TWO_PHASE_DELIVER_BEFORE_SAVED is set, deliver also receives accepted messages, in batches, and publishes them to their
// receivers before they are saved. This must not wait for Postgres. So deliver publishes an event with the time of this, and records
// the time in Postgres when it receives the event.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// Function posts webhooks and messages to URLs.
var Function = fn.EventBatch("deliver", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) (fn.EventHandler, fn.BatchHandler) {
	d := &deliverer{env: env, cfg: cfg, poster: newPoster(cfg.Timeout, env.Config.OutgoingNetworks),
		webhooksInFlight: newWorkInFlight[webhooks.DueDelivery](), messagesInFlight: newWorkInFlight[urlMessage]()}
	d.poster.logNonPublic = func(host string, cause error) {
		if unlogged, log := d.nonPublic.Next(host); log {
			env.Log.Info("no public address to deliver to", "host", task.MaskNumbers(host), "cause", task.MaskNumbers(cause.Error()), "unlogged", unlogged)
		}
	}
	telemetry.CollectValue(env.Metrics(), "the state of webhook endpoints", env.Webhooks.UnhealthyEndpoints, func(s *metrics.Scrape, endpoints webhooks.UnhealthyEndpoints) {
		for state, n := range map[string]int{"failing": endpoints.Failing, "disabled": endpoints.Disabled} {
			s.Gauge("webhook_endpoints", "Registered webhook endpoints that fail or are disabled.", float64(n), "state", state)
		}
	})
	return d.event, d.batch
}

// event publishes an accepted message, records the time in a deliveredType event, or records deliveries of an event that endpoints
// can subscribe to. It ignores an unreadable message. After any other event, such as a tick, it posts what is due.
func (d *deliverer) event(ctx context.Context, c *fn.Call, e cloudevents.Event) error {
	// The trigger adds acceptseq to the messages of the stream of accepted messages.
	if _, accepted := e.Extensions()["acceptseq"]; accepted || e.Type() == bus.AcceptedType {
		return d.push(ctx, c, []streamevent.Event{streamevent.FromCloudEvent(e)})
	}
	if e.Type() == deliveredType {
		return d.recordDelivered(ctx, e)
	}
	if isSubscribable(e.Type()) {
		refused, err := d.record(ctx, []streamevent.Event{streamevent.FromCloudEvent(e)})
		if err == nil && refused[0] != nil {
			err = fn.Poison(refused[0])
		}
		return err
	}
	if e.Type() == bus.UnreadableType {
		return nil
	}
	return d.deliver(ctx, c)
}

// batch does the same for several events, but posts nothing: it ignores events such as a tick.
func (d *deliverer) batch(ctx context.Context, c *fn.Call, events []streamevent.Event) error {
	var accepted, toRecord, delivered []streamevent.Event
	for _, e := range events {
		switch {
		case e.Type == deliveredType:
			delivered = append(delivered, e)
		case isSubscribable(e.Type):
			toRecord = append(toRecord, e)
		default:
			accepted = append(accepted, e) // push ignores an event that is not an accepted message
		}
	}
	refused, err := d.record(ctx, toRecord)
	for i, reason := range refused { // nil after an error
		err = errors.Join(err, d.deadLetterPoison(ctx, c, &toRecord[i], fn.Poison(reason)))
	}
	for i := 0; err == nil && i < len(delivered); i++ { // after the other events, because recordDelivered may wait for a locked message
		err = d.deadLetterPoison(ctx, c, &delivered[i], d.recordDelivered(ctx, delivered[i].CloudEvent()))
	}
	if err != nil || len(accepted) == 0 {
		return err
	}
	return d.push(ctx, c, accepted)
}

// deadLetterPoison stores the event as a dead letter if err is poison: no retry of the batch can succeed with this event. If err is
// not poison, deadLetterPoison returns err.
func (d *deliverer) deadLetterPoison(ctx context.Context, c *fn.Call, e *streamevent.Event, err error) error {
	reason := fn.PoisonIn(err)
	if reason == nil {
		return err
	}
	c.Log("dead_letter", task.MaskNumbers(reason.Error()))
	return d.env.Admin.AddDeadLetters(ctx, store.DeadLetter{
		Function: "deliver", EventID: e.ID, EventType: e.Type, Event: string(slices.Concat(e.Data, e.DataBase64)), Reason: reason.Error(), Attempts: 1,
	})
}

// kindOf returns the kind of an event, whose type is sendonce.<kind>.v1.
func kindOf(eventType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(eventType, "sendonce."), ".v1")
}

// isSubscribable reports whether endpoints can subscribe to events of a type.
func isSubscribable(eventType string) bool {
	kind := kindOf(eventType)
	return strings.HasPrefix(eventType, "sendonce.") &&
		(strings.HasPrefix(kind, "task.") || strings.HasPrefix(kind, "webhook.") || strings.HasPrefix(kind, "alert."))
}

// record stores the deliveries of each event, one for each of its receivers. If an event can never be recorded, refused has the
// reason under the index of the event. After an error refused is nil.
func (d *deliverer) record(ctx context.Context, events []streamevent.Event) (refused map[int]error, err error) {
	refused = map[int]error{}
	var indexes []int
	var recorded []webhooks.RecordedEvent
	for i := range events {
		e, err := recordedEvent(&events[i])
		if err != nil {
			refused[i] = err
			continue
		}
		indexes, recorded = append(indexes, i), append(recorded, e)
	}
	if len(recorded) == 0 {
		return refused, nil
	}
	n, unknown, err := d.env.Webhooks.RecordEvents(ctx, recorded, api.NewWebhookSecret)
	if n > 0 { // also after an error: some of the deliveries may be recorded
		d.env.WakeDeliverAt(time.Time{})
	}
	if store.IsPoison(err) {
		if len(events) == 1 {
			return map[int]error{0: err}, nil
		}
		return d.recordEach(ctx, events)
	}
	if err != nil {
		return nil, err
	}
	for _, i := range unknown {
		refused[indexes[i]] = fmt.Errorf("its subject %q does not exist", events[indexes[i]].Subject)
	}
	d.trimEventsIfNeeded(ctx, recorded)
	return refused, nil
}

// recordEach records each event alone, to find the events for which Postgres refuses the batch.
func (d *deliverer) recordEach(ctx context.Context, events []streamevent.Event) (refused map[int]error, err error) {
	refused = map[int]error{}
	for i := range events {
		refusedAlone, err := d.record(ctx, events[i:i+1])
		if err != nil {
			return nil, err
		}
		if refusedAlone[0] != nil {
			refused[i] = refusedAlone[0]
		}
	}
	return refused, nil
}

// maxEventText limits the id and the type of an event, in bytes each. Those of the relay's events are shorter.
const maxEventText = 255

func recordedEvent(e *streamevent.Event) (recorded webhooks.RecordedEvent, err error) {
	if len(e.ID) > maxEventText || len(e.Type) > maxEventText {
		return recorded, fmt.Errorf("its id or its type is longer than %d bytes", maxEventText)
	}
	subject, err := task.ParseID(e.Subject)
	if err != nil {
		return recorded, fmt.Errorf("its subject %q is not an id", e.Subject)
	}
	payload, err := e.CloudEvent().MarshalJSON()
	switch {
	case err != nil:
	case len(e.DataBase64) > 0:
		err = errors.New("is not JSON")
	case !utf8.Valid(payload):
		err = errors.New("is not valid UTF-8")
	}
	if err != nil {
		return recorded, fmt.Errorf("its data: %w", err)
	}
	return webhooks.RecordedEvent{ID: e.ID, Kind: kindOf(e.Type), Type: e.Type, Subject: subject, Payload: string(payload)}, nil
}

// deliver removes old messages from the streams if a trim is due. Then it posts everything that is due, and schedules the next call.
// It trims first: while webhooks or messages are always due, posting uses up the time of each call.
func (d *deliverer) deliver(ctx context.Context, c *fn.Call) error {
	return errors.Join(d.trim(ctx, c), d.postDue(ctx, c))
}

func (d *deliverer) postDue(ctx context.Context, c *fn.Call) error {
	next, due, err := d.env.Webhooks.NextDelivery(ctx)
	if err == nil && due {
		var started bool
		if started, err = d.post(ctx, c); !started {
			// Another call of this process is claiming: it posts what is due, and schedules the next call. The wake-up here is
			// only needed if the process dies before that.
			d.env.WakeDeliverAt(time.Now().Add(d.lease()))
		}
		if err != nil || !started {
			return err
		}
		next, _, err = d.env.Webhooks.NextDelivery(ctx)
	}
	if err != nil {
		return err
	}
	// next may be the end of a lease: the process that holds the lease may have died.
	if !next.IsZero() {
		d.env.WakeAgainAt(bus.WakeDeliver, fn.NotBefore(next, time.Second))
	}
	return nil
}

// post runs the pipelines of webhooks and of messages. If another call of this process is claiming for one of them, started is
// false, and that call claims again.
func (d *deliverer) post(ctx context.Context, c *fn.Call) (started bool, err error) {
	deadline, _ := ctx.Deadline()
	claimUntil := deadline.Add(-robotInterval - d.cfg.Timeout - settleTime)
	var webhookCount, messageCount int
	var webhooksStarted, messagesStarted bool
	var webhooksErr, messagesErr error
	var both sync.WaitGroup
	both.Go(func() { webhookCount, webhooksStarted, webhooksErr = runPipeline(ctx, d, claimUntil, d.webhooks()) })
	both.Go(func() { messageCount, messagesStarted, messagesErr = runPipeline(ctx, d, claimUntil, d.messages()) })
	both.Wait()
	c.Log("webhooks", webhookCount, "messages", messageCount)
	return webhooksStarted && messagesStarted, errors.Join(webhooksErr, messagesErr)
}
