package deliver

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// messages returns the pipeline that posts reliable messages to their URLs.
func (d *deliverer) messages() pipeline[urlMessage] {
	return pipeline[urlMessage]{
		inFlight: d.messagesInFlight,
		claim:    d.claimMessages,
		post: func(ctx context.Context, w urlMessage) attempt {
			if w.signing.Err != nil {
				return d.unsignedAttempt(secretOwner{caller: w.CallerID}, w.ID, w.signing.Err)
			}
			event := streamevent.OfMessage(w.Detail)
			if w.token != nil {
				event.SetExtension(streamevent.ConfirmTokenAttribute, streamevent.ConfirmToken(w.token))
			}
			body, err := event.MarshalJSON()
			if err != nil {
				return attempt{at: time.Now(), err: err.Error()}
			}
			return d.poster.post(ctx, w.Destination, w.ID.String(), body, w.signing.Secrets)
		},
		settle: func(ctx context.Context, batch []posted[urlMessage]) (locked []posted[urlMessage], err error) {
			var toSettle []posted[urlMessage]
			var results []messages.Posted // one for each of toSettle
			for _, p := range batch {
				if p.work.signing.Err != nil { // not posted: the message is claimed again when its lease ends
					d.env.WakeDeliverAt(time.Now().Add(d.lease()))
					continue
				}
				toSettle, results = append(toSettle, p), append(results, messages.Posted{Post: p.work.Post, Result: p.result()})
			}
			settled, err := d.env.Messages.SettlePosts(ctx, results)
			if err != nil {
				return nil, err
			}
			for _, i := range settled.Unsettled {
				locked = append(locked, toSettle[i])
			}
			d.wakeAt(settled.NextTries)
			return locked, nil
		},
	}
}

func (d *deliverer) claimMessages(ctx context.Context, inFlight []urlMessage) ([]urlMessage, error) {
	current := store.Column(inFlight, func(w urlMessage) messages.Post { return w.Post })
	posts, err := d.env.Messages.ClaimPosts(ctx, limits, current, d.lease())
	if err != nil || len(posts) == 0 {
		return nil, err
	}
	callers := store.Column(posts, func(p messages.Post) int64 { return p.CallerID })
	secrets, err := d.env.Webhooks.SigningSecrets(ctx, callers, api.NewWebhookSecret)
	if err != nil {
		return nil, err
	}
	var toConfirm []task.ID
	for _, p := range posts {
		if p.Confirm {
			toConfirm = append(toConfirm, p.ID)
		}
	}
	tokens, err := d.env.Messages.ConfirmTokens(ctx, toConfirm)
	if err != nil {
		return nil, err
	}
	claimed := make([]urlMessage, len(posts))
	for i, p := range posts {
		claimed[i] = urlMessage{p, secrets[p.CallerID], tokens[p.ID]}
	}
	return claimed, nil
}

// result returns the result of an attempt for a message. Every attempt counts as a send of the message, except a cancelled one.
func (a attempt) result() message.Result {
	switch {
	case a.err == "":
		return message.Result{Outcome: message.Accepted}
	case a.cancelled:
		return message.Result{Outcome: message.Unavailable, Reason: a.err}
	default:
		return message.Result{Outcome: message.Refused, Reason: a.err, RetryAfter: a.retryAfter}
	}
}
