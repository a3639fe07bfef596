package deliver

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// webhooks returns the pipeline that posts events to webhook endpoints and callback URLs.
func (d *deliverer) webhooks() pipeline[webhooks.DueDelivery] {
	return pipeline[webhooks.DueDelivery]{
		inFlight: d.webhooksInFlight,
		claim: func(ctx context.Context, inFlight []webhooks.DueDelivery) ([]webhooks.DueDelivery, error) {
			return d.env.Webhooks.ClaimDeliveries(ctx, limits, inFlight, d.lease())
		},
		post: func(ctx context.Context, w webhooks.DueDelivery) attempt {
			if w.Err != nil {
				return d.unsignedAttempt(secretOwner{w.CallerID, w.EndpointID}, w.EndpointID, w.Err)
			}
			if w.Payload == "" {
				return attempt{at: time.Now(), err: "there is no event for this delivery"}
			}
			if kind, ok := robotKinds[w.Format]; ok {
				return d.postToRobot(ctx, kind, w)
			}
			return d.poster.post(ctx, w.URL, w.EventID, []byte(w.Payload), w.Secrets)
		},
		settle: func(ctx context.Context, batch []posted[webhooks.DueDelivery]) (locked []posted[webhooks.DueDelivery], err error) {
			var toSettle []posted[webhooks.DueDelivery]
			var tried []webhooks.Tried // one for each of toSettle
			for _, p := range batch {
				if p.cancelled { // the delivery is claimed again when its lease ends
					d.env.WakeDeliverAt(time.Now().Add(d.lease()))
					continue
				}
				toSettle, tried = append(toSettle, p), append(tried, webhooks.Tried{
					DueDelivery: p.work, Result: message.PostResult{Status: p.status, RetryAfter: p.retryAfter, Refused: p.refused},
					Try: webhooks.Try{At: p.at.UTC(), Status: p.status, DurationMS: p.duration.Milliseconds(), Error: p.err, Response: p.response},
				})
			}
			settled, err := d.env.Webhooks.SettleDeliveries(ctx, tried, d.cfg.DisableAfter)
			if err != nil {
				return nil, err
			}
			for i, p := range toSettle {
				switch {
				case slices.Contains(settled.Unsettled, i):
					locked = append(locked, p)
				case p.err != "":
					d.env.Metrics().WebhookFailed.Inc()
				}
			}
			d.wakeAt(settled.NextTries)
			for _, change := range settled.Changed {
				d.logChange(change)
			}
			return locked, nil
		},
	}
}

// logChange logs that an endpoint began to fail, recovered or was disabled. `make run` shows these lines in its terminal. If an
// endpoint fails and recovers again and again, "fails" and "recovered" are each logged at most once a minute.
func (d *deliverer) logChange(c webhooks.EndpointChange) {
	log := d.env.Log.With("function", "deliver", "endpoint_id", c.ID, "host", task.MaskNumbers(task.HostOf(c.URL)))
	disabled := c.After.DisabledReason != c.Before.DisabledReason
	if !disabled {
		unlogged, shouldLog := d.changes.Next(endpointState{c.ID, c.After.FailingSince.IsZero()})
		if !shouldLog {
			return
		}
		if unlogged > 0 {
			log = log.With("unlogged", unlogged)
		}
	}
	switch {
	case disabled:
		log.Warn("webhook endpoint disabled", "reason", c.After.DisabledReason, "error", c.Error,
			"do", "POST /api/v1/webhooks/endpoints/"+c.ID.String()+"/enable when it responds again")
	case c.After.FailingSince.IsZero():
		log.Info("webhook endpoint recovered")
	default:
		log.Warn("webhook endpoint fails", "error", c.Error, "do", "GET /api/v1/webhooks/deliveries shows each try; failed deliveries are tried again")
	}
}
