package deliver

import (
	"context"
	"net/url"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const leaseSpare = 15 * time.Second // beyond the time of a call

// places are those of one kind. The calls of one caller, however many endpoints and
// hosts it has, leave three quarters of them to others.
var places = store.Places{All: laneWidth, Caller: laneWidth / 4, Lane: laneWidth / 8, Failing: laneWidth / 4}

// settle keeps what was posted even when the call's own time is up.
func (d *deliverer) settle(ctx context.Context, keep func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	return keep(ctx)
}

func (d *deliverer) lease() time.Duration { return d.cfg.Timeout + leaseSpare }

// webhooks tells events to endpoints.
func (d *deliverer) webhooks() lane[store.DueDelivery] {
	return lane[store.DueDelivery]{
		desk: d.webhookDesk,
		claim: func(ctx context.Context, inHand []store.DueDelivery) ([]store.DueDelivery, error) {
			return d.db.ClaimDeliveries(ctx, places, inHand, d.lease())
		},
		post: func(ctx context.Context, w store.DueDelivery) attempt {
			if w.Err != nil {
				return d.unsigned(w.EndpointID.String(), w.Err)
			}
			return d.poster.post(ctx, w.URL, w.EventID, []byte(w.Payload), w.Secrets)
		},
		settle: func(ctx context.Context, all []posted[store.DueDelivery]) error {
			var tried []store.Tried
			for _, p := range all {
				if p.cancelled {
					d.env.WakeDeliverAt(time.Now().Add(d.lease()))
					continue
				}
				if p.err != "" {
					d.env.Metrics().WebhookFailed.Inc()
				}
				tried = append(tried, store.Tried{
					DueDelivery: p.work, Answer: message.Answer{Status: p.status, RetryAfter: p.retryAfter},
					Try: store.Try{At: p.at.UTC(), Status: p.status, DurationMS: p.duration.Milliseconds(), Error: p.err, Response: p.response},
				})
			}
			settled, err := d.db.SettleDeliveries(ctx, tried, d.cfg.Patience)
			if err != nil {
				return err
			}
			d.wakeAt(settled.Again)
			for _, change := range settled.Changed {
				d.logChange(change)
			}
			return nil
		},
	}
}

func (d *deliverer) wakeAt(times []time.Time) {
	for _, at := range times {
		d.env.WakeDeliverAt(at)
	}
}

// logChange writes one line when an endpoint begins to fail, recovers or is
// disabled, and none for the tries between. `make run` shows lines of these
// messages in its terminal.
func (d *deliverer) logChange(c store.EndpointChange) {
	log := d.env.Log.With("function", "deliver", "endpoint_id", c.ID, "host", hostOf(c.URL))
	switch {
	case c.After.Disabled != c.Before.Disabled:
		log.Warn("webhook endpoint disabled", "reason", c.After.Disabled, "error", c.Error,
			"do", "POST /api/v1/webhooks/endpoints/"+c.ID.String()+"/enable when it answers again")
	case c.After.FailingSince.IsZero():
		log.Info("webhook endpoint recovered")
	default:
		log.Warn("webhook endpoint fails", "error", c.Error, "do", "GET /api/v1/webhooks/deliveries shows each try; it is tried again")
	}
}

// hostOf is what may be logged of a URL: its path may hold a secret.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Host
}

// letter is a message to a URL, ready to be posted.
type letter struct {
	store.Post
	signing store.Signing
	token   []byte // that its confirmation must give back; nil when its 2xx is the confirmation
}

// messages sends reliable messages to their URLs.
func (d *deliverer) messages() lane[letter] {
	return lane[letter]{
		desk:  d.messageDesk,
		claim: d.claimLetters,
		post: func(ctx context.Context, w letter) attempt {
			if w.signing.Err != nil {
				return d.unsigned(w.ID.String(), w.signing.Err)
			}
			event, err := fn.MessageEvent(w.MessageDetail)
			if err != nil {
				return attempt{at: time.Now(), err: err.Error()}
			}
			if w.token != nil {
				event.SetExtension(fn.ConfirmTokenAttribute, fn.ConfirmToken(w.token))
			}
			body, err := event.MarshalJSON()
			if err != nil {
				return attempt{at: time.Now(), err: err.Error()}
			}
			return d.poster.post(ctx, w.Destination, w.ID.String(), body, w.signing.Secrets)
		},
		settle: func(ctx context.Context, all []posted[letter]) error {
			results := make([]store.Posted, len(all))
			for i, p := range all {
				results[i] = store.Posted{Post: p.work.Post, Result: p.result()}
			}
			again, err := d.db.SettlePosts(ctx, results)
			d.wakeAt(again)
			return err
		},
	}
}

// unsigned is the attempt of what cannot be signed, as an operator removed a key
// too early: nothing was posted, and it is tried again when its lease ends.
func (d *deliverer) unsigned(id string, err error) attempt {
	d.env.Log.Error("signing secret cannot be decrypted", "function", "deliver", "id", id, "cause", err.Error(),
		"do", "add the key that it was encrypted with to SENDONCE_ENCRYPTION_KEYS")
	return attempt{at: time.Now(), cancelled: true, err: "the signing secret cannot be decrypted; an operator has to look"}
}

func (d *deliverer) claimLetters(ctx context.Context, inHand []letter) ([]letter, error) {
	held := make([]store.Post, len(inHand))
	for i, w := range inHand {
		held[i] = w.Post
	}
	posts, err := d.db.ClaimPosts(ctx, places, held, d.lease())
	if err != nil || len(posts) == 0 {
		return nil, err
	}
	callers := make([]int64, len(posts))
	for i, p := range posts {
		callers[i] = p.CallerID
	}
	secrets, err := d.db.SigningSecrets(ctx, callers, api.NewWebhookSecret)
	if err != nil {
		return nil, err
	}
	var explicit []task.ID
	for _, p := range posts {
		if p.Confirm {
			explicit = append(explicit, p.ID)
		}
	}
	tokens, err := d.db.ConfirmTokens(ctx, explicit)
	if err != nil {
		return nil, err
	}
	letters := make([]letter, len(posts))
	for i, p := range posts {
		letters[i] = letter{p, secrets[p.CallerID], tokens[p.ID]}
	}
	return letters, nil
}

// result is what a message makes of an attempt. Only when we ourselves broke it
// off is it nobody's word: a receiver that is not there has failed to answer.
func (a attempt) result() message.Result {
	switch {
	case a.err == "":
		return message.Result{Outcome: message.Taken}
	case a.cancelled:
		return message.Result{Outcome: message.Away, Reason: a.err}
	default:
		return message.Result{Outcome: message.Refused, Reason: a.err, RetryAfter: a.retryAfter}
	}
}
