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

const (
	perEndpoint = 16 // calls of one endpoint at once
	perHost     = 16 // calls with messages of one host at once
	hostPause   = time.Second
	leaseSpare  = 15 * time.Second // beyond the time of a call

	eventType = "application/cloudevents+json; charset=utf-8"
)

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
		claim: func(ctx context.Context, room int, inHand map[int]store.DueDelivery) ([]store.DueDelivery, error) {
			busy := map[task.ID]int{}
			for _, w := range inHand {
				busy[w.EndpointID]++
			}
			return d.db.ClaimDeliveries(ctx, room, perEndpoint, busy, d.lease())
		},
		post: func(ctx context.Context, w store.DueDelivery) attempt {
			return d.poster.post(ctx, w.URL, w.EventID, []byte(w.Payload), eventType, w.Secrets)
		},
		settle: func(ctx context.Context, all []posted[store.DueDelivery]) error {
			var tried []store.Tried
			for _, p := range all {
				if p.cancelled {
					d.env.DeliverAt(time.Now().Add(d.lease()))
					continue
				}
				tried = append(tried, store.Tried{
					DueDelivery: p.work, Answer: message.Answer{Status: p.status, RetryAfter: p.retryAfter},
					Try: store.Try{At: p.at.UTC(), Status: p.status, DurationMS: p.duration.Milliseconds(), Error: p.err, Response: p.response},
				})
			}
			again, err := d.db.SettleDeliveries(ctx, tried, d.cfg.Patience)
			d.wakeAt(again)
			return err
		},
	}
}

func (d *deliverer) wakeAt(times []time.Time) {
	for _, at := range times {
		d.env.DeliverAt(at)
	}
}

// letter is a message to a URL, ready to be posted.
type letter struct {
	store.Post
	host    string
	secrets []string
}

// messages sends reliable messages to their URLs.
func (d *deliverer) messages() lane[letter] {
	return lane[letter]{
		desk:  d.messageDesk,
		claim: d.claimLetters,
		post: func(ctx context.Context, w letter) attempt {
			event, err := fn.MessageEvent(w.MessageDetail)
			if err != nil {
				return attempt{at: time.Now(), err: err.Error()}
			}
			body, err := event.MarshalJSON()
			if err != nil {
				return attempt{at: time.Now(), err: err.Error()}
			}
			return d.poster.post(ctx, w.Destination, w.ID.String(), body, eventType, w.secrets)
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

// claimLetters leaves those for later whose host has as many in hand as it may.
func (d *deliverer) claimLetters(ctx context.Context, room int, inHand map[int]letter) ([]letter, error) {
	posts, err := d.db.ClaimPosts(ctx, room, d.lease())
	if err != nil || len(posts) == 0 {
		return nil, err
	}
	busy := map[string]int{}
	for _, w := range inHand {
		busy[w.host]++
	}
	var letters []letter
	var later []store.Post
	var callers []int64
	for _, p := range posts {
		host := hostOf(p.Destination)
		if busy[host] >= perHost {
			later = append(later, p)
			continue
		}
		busy[host]++
		letters, callers = append(letters, letter{Post: p, host: host}), append(callers, p.CallerID)
	}
	if len(later) > 0 {
		if err := d.db.PostponePosts(ctx, later, hostPause); err != nil {
			return nil, err
		}
		d.env.DeliverAt(time.Now().Add(hostPause))
	}
	secrets, err := d.db.SigningSecrets(ctx, callers, api.NewWebhookSecret)
	for i := range letters {
		letters[i].secrets = secrets[letters[i].CallerID]
	}
	if err != nil {
		return nil, err
	}
	return letters, nil
}

func hostOf(destination string) string {
	u, err := url.Parse(destination)
	if err != nil {
		return "" // those that cannot be parsed share a place; posting them says why
	}
	return u.Host
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
