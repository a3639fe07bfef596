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
// Where messages are delivered before they are saved (seed 004 section 4.2) it
// gets batches of accepted messages too, and publishes them. When that was comes
// back to it as an event, which it records: it does not wait for Postgres in between.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
	Timeout  time.Duration   `envconfig:"SENDONCE_WEBHOOK_TIMEOUT" default:"15s" desc:"how long one call of a webhook or a message's URL may take, 1s to 20s"`
	Patience time.Duration   `envconfig:"SENDONCE_WEBHOOK_DISABLE_AFTER" default:"120h" desc:"a webhook endpoint whose every call failed for so long is disabled"`
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
	return d.take, d.push
}

type deliverer struct {
	db     *store.DB
	env    *fn.Env
	cfg    Config
	poster *poster

	webhookDesk *desk[store.DueDelivery]
	messageDesk *desk[letter]
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
		return d.push(ctx, c, []fn.Posted{fn.PostedAlone(e)})
	}
	if e.Type() == deliveredType {
		return d.recordDelivered(ctx, e)
	}
	if kind, ours := kindOf(e.Type()); ours {
		return d.record(ctx, kind, e)
	}
	return d.deliver(ctx, c)
}

// kindOf gives the kind of an event that Sendonce tells: sendonce.<kind>.v1.
func kindOf(eventType string) (kind string, ours bool) {
	kind, ours = strings.CutPrefix(eventType, "sendonce.")
	kind, _ = strings.CutSuffix(kind, ".v1")
	return kind, ours && (strings.HasPrefix(kind, "task.") || strings.HasPrefix(kind, "webhook.") || strings.HasPrefix(kind, "alert."))
}

// record has an event told to everyone who is to hear of it, from now on.
func (d *deliverer) record(ctx context.Context, kind string, e cloudevents.Event) error {
	subject, err := task.ParseID(e.Subject())
	if err != nil {
		return fn.Poison(fmt.Errorf("its subject %q is no id", e.Subject()))
	}
	payload, err := e.MarshalJSON()
	if err == nil && !utf8.Valid(payload) {
		err = errors.New("is not valid UTF-8")
	}
	if err != nil {
		return fn.Poison(fmt.Errorf("its data: %w", err))
	}
	told, err := d.db.RecordEvent(ctx, store.ToldEvent{
		ID: e.ID(), Kind: kind, Type: e.Type(), Subject: subject, Payload: string(payload),
	}, api.NewWebhookSecret)
	if task.CodeOf(err) == task.CodeNotFound {
		return fn.Poison(err)
	}
	if told > 0 {
		d.env.DeliverAt(time.Time{})
	}
	return err
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
		d.env.Again(bus.WakeDeliver, fn.NotBefore(next, time.Second))
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
