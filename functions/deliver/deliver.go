// Package deliver is the event function that calls the URLs of others: webhooks
// that tell what became of a task, and reliable messages to URLs.
//
//	POST /events/deliver
//
// An event of a task, an endpoint or an alert is only recorded, once for each who is to hear of it. What
// is due is then posted, by whichever call finds it: claimed under a lease,
// posted outside any transaction, settled. A deliver that dies has at most posted
// something that is posted again, under the same webhook-id, when its lease ends.
// No slow or dead receiver keeps another one waiting for long: each has a lane, and
// each caller at most a quarter of the places.
//
// Now and then it also removes from the streams what nobody waits for any more, and
// raises and clears the alerts of streams that are nearly full.
//
// Where messages are delivered before they are saved, it receives batches of
// accepted messages too, and publishes them. The time of each publication comes back
// as an event, which it records, so that publishing does not wait for Postgres.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	Timeout  time.Duration   `envconfig:"SENDONCE_WEBHOOK_TIMEOUT" default:"15s" desc:"timeout of one call to a webhook or to a message's URL, 1s to 20s"`
	Patience time.Duration   `envconfig:"SENDONCE_WEBHOOK_DISABLE_AFTER" default:"120h" desc:"a webhook endpoint is disabled after all calls to it have failed for so long"`
	Networks config.Networks `envconfig:"SENDONCE_OUTGOING_NETWORKS" desc:"networks that webhooks and messages to URLs may call although they are not public, as 10.1.2.3,fd00::/8"`
}

// Validate checks what the types alone cannot.
func (c *Config) Validate() []task.Field {
	var bad []task.Field
	if c.Timeout < time.Second || c.Timeout > 20*time.Second {
		bad = append(bad, task.Field{Name: "SENDONCE_WEBHOOK_TIMEOUT", Message: "must be between 1s and 20s"})
	}
	if c.Patience <= 0 {
		bad = append(bad, task.Field{Name: "SENDONCE_WEBHOOK_DISABLE_AFTER", Message: "must be more than 0"})
	}
	return bad
}

// Function is this package's line in the catalogue.
var Function = fn.EventBatch("deliver", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) (fn.EventHandler, fn.BatchHandler) {
	d := &deliverer{db: env.DB(), env: env, cfg: cfg, poster: newPoster(cfg.Timeout, cfg.Networks),
		webhookDesk: newDesk[store.DueDelivery](), messageDesk: newDesk[letter]()}
	d.poster.hidden = func(host string, cause error) {
		env.Log.Info("no public address to deliver to", "host", host, "cause", cause.Error())
	}
	env.Metrics().OnScrapeEndpoints(env.DB().UnhealthyEndpoints)
	return d.take, d.takeMany
}

type deliverer struct {
	db     *store.DB
	env    *fn.Env
	cfg    Config
	poster *poster

	webhookDesk *desk[store.DueDelivery]
	messageDesk *desk[letter]

	recorded atomic.Int64 // bytes of events since their stream was last trimmed for them
}

func (d *deliverer) isDraining() bool {
	select {
	case <-d.env.Draining():
		return true
	default:
		return false
	}
}

// take records an event of Sendonce; anything else, such as a tick, has what is
// due delivered.
func (d *deliverer) take(ctx context.Context, c *fn.Call, e cloudevents.Event) error {
	if _, accepted := e.Extensions()["acceptseq"]; accepted || e.Type() == bus.AcceptedType {
		return d.push(ctx, c, []fn.StreamEvent{fn.EventAlone(e)})
	}
	if e.Type() == deliveredType {
		return d.recordDelivered(ctx, e)
	}
	if _, ours := kindOf(e.Type()); ours {
		refused, err := d.record(ctx, []fn.StreamEvent{fn.EventAlone(e)})
		for _, why := range refused {
			return fn.Poison(why)
		}
		return err
	}
	return d.deliver(ctx, c)
}

// takeMany records events of Sendonce, and publishes accepted messages.
func (d *deliverer) takeMany(ctx context.Context, c *fn.Call, events []fn.StreamEvent) error {
	var accepted, ours []fn.StreamEvent
	for i := range events {
		switch e := &events[i]; {
		case e.Type == deliveredType:
			if err := d.bury(ctx, c, e, d.recordDelivered(ctx, e.Event())); err != nil {
				return err
			}
		case isOurs(e):
			ours = append(ours, *e)
		default:
			accepted = append(accepted, *e)
		}
	}
	refused, err := d.record(ctx, ours)
	for i, why := range refused {
		err = errors.Join(err, d.bury(ctx, c, &ours[i], fn.Poison(why)))
	}
	if err != nil || len(accepted) == 0 {
		return err
	}
	return d.push(ctx, c, accepted)
}

func isOurs(e *fn.StreamEvent) bool {
	_, ours := kindOf(e.Type)
	return ours
}

// bury keeps an event over which no retry will help, with err as the reason, so that
// its neighbours go on; any other err it returns.
func (d *deliverer) bury(ctx context.Context, c *fn.Call, e *fn.StreamEvent, err error) error {
	why := fn.PoisonIn(err)
	if why == nil {
		return err
	}
	c.Log("dead_letter", why.Error())
	return d.db.Bury(ctx, store.DeadLetter{
		Function: "deliver", EventID: e.ID, EventType: e.Type, Event: string(slices.Concat(e.Data, e.DataBase64)), Reason: why.Error(), Attempts: 1,
	})
}

// kindOf gives the kind of an event that Sendonce tells: sendonce.<kind>.v1.
func kindOf(eventType string) (kind string, ours bool) {
	kind, ours = strings.CutPrefix(eventType, "sendonce.")
	kind, _ = strings.CutSuffix(kind, ".v1")
	return kind, ours && (strings.HasPrefix(kind, "task.") || strings.HasPrefix(kind, "webhook.") || strings.HasPrefix(kind, "alert."))
}

// record has events told to everyone who is to hear of them, from now on. refused
// has, by their places, those that can never be recorded, and why.
func (d *deliverer) record(ctx context.Context, events []fn.StreamEvent) (refused map[int]error, err error) {
	refused = map[int]error{}
	var places []int
	var told []store.RecordedEvent
	for i := range events {
		e, err := toldEvent(&events[i])
		if err != nil {
			refused[i] = err
			continue
		}
		places, told = append(places, i), append(told, e)
	}
	if len(told) == 0 {
		return refused, nil
	}
	n, unknown, err := d.db.RecordEvents(ctx, told, api.NewWebhookSecret)
	for _, i := range unknown {
		refused[places[i]] = fmt.Errorf("its subject %q does not exist", events[places[i]].Subject)
	}
	if n > 0 {
		d.env.WakeDeliverAt(time.Time{})
	}
	if err == nil {
		d.trimEventsInTime(ctx, told)
	}
	return refused, err
}

func toldEvent(p *fn.StreamEvent) (told store.RecordedEvent, err error) {
	kind, _ := kindOf(p.Type)
	subject, err := task.ParseID(p.Subject)
	if err != nil {
		return told, fmt.Errorf("its subject %q is no id", p.Subject)
	}
	payload, err := p.Event().MarshalJSON()
	switch {
	case err != nil:
	case len(p.DataBase64) > 0:
		err = errors.New("is no JSON")
	case !utf8.Valid(payload):
		err = errors.New("is not valid UTF-8")
	}
	if err != nil {
		return told, fmt.Errorf("its data: %w", err)
	}
	return store.RecordedEvent{ID: p.ID, Kind: kind, Type: p.Type, Subject: subject, Payload: string(payload)}, nil
}

// settleTime is kept of a call's time to settle what was posted.
const settleTime = 5 * time.Second

// deliver posts everything that is due, and sees to what comes next.
func (d *deliverer) deliver(ctx context.Context, c *fn.Call) error {
	next, due, err := d.db.NextDelivery(ctx)
	if err == nil && due {
		var first bool
		if first, err = d.post(ctx, c); err != nil || !first {
			return err // whoever is at work has things in hand, and will see to what comes next
		}
		next, _, err = d.db.NextDelivery(ctx)
	}
	if err != nil {
		return err
	}
	// Another deliver may have died with something in hand: its lease is a due time too.
	if !next.IsZero() {
		d.env.WakeAgainAt(bus.WakeDeliver, fn.NotBefore(next, time.Second))
	}
	return d.trim(ctx, c)
}

// post posts what is due, of both kinds at once; first is false when another call
// is at it, which then looks again.
func (d *deliverer) post(ctx context.Context, c *fn.Call) (first bool, err error) {
	deadline, _ := ctx.Deadline()
	until := deadline.Add(-d.cfg.Timeout - settleTime)
	var webhooks, messages int
	var webhooksErr, messagesErr error
	var firsts [2]bool
	var both sync.WaitGroup
	both.Go(func() { webhooks, firsts[0], webhooksErr = drain(ctx, d, until, d.webhooks()) })
	both.Go(func() { messages, firsts[1], messagesErr = drain(ctx, d, until, d.messages()) })
	both.Wait()
	c.Log("webhooks", webhooks, "messages", messages)
	return firsts[0] && firsts[1], errors.Join(webhooksErr, messagesErr)
}
