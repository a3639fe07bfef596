package trigger

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/retry"
)

const (
	resettleTimeout       = time.Second // for settling on a later connection; short, because a restarted server that lost the state of the delivery does not reply
	deniedText            = "the function rejected the trigger's credentials or redirected: check SENDONCE_TRIGGER_USER, SENDONCE_TRIGGER_PASSWORD and the base URL"
	deniedBackoff         = time.Minute      // after 401, 403 and redirects: an operator must correct a setting
	unavailableBackoffMax = 10 * time.Second // while the function or one of its dependencies is unavailable
	unorderedBackoffMax   = 2 * time.Second  // the same with UnorderedBatch; short, because waiting retries use up InFlight
)

func (t *Trigger) settleByVerdict(ctx context.Context, r *route, it *item, v verdict) {
	err := t.settle(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return t.applyVerdict(ctx, js, r, it, v)
	})
	if err != nil {
		t.logger(r, it.meta).Warn("cannot settle an event: it will be delivered again", "status", v.status, "error", err)
	}
}

// heartbeat calls beat at an interval until stop is called.
func heartbeat(every time.Duration, beat func()) (stop func()) {
	ticker, ended := time.NewTicker(every), make(chan struct{})
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				beat()
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended) }
}

// settle calls do, which acknowledges, returns (nak) or terminates messages. If the connection is lost
// meanwhile, settle calls do again on the next connection.
func (t *Trigger) settle(ctx context.Context, do func(context.Context, jetstream.JetStream) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for limit := settleTimeout; ; limit = resettleTimeout {
		conn, err := t.bus.AwaitConnection(ctx)
		if err != nil {
			return err
		}
		limited, cancel := conn.WithTimeout(ctx, limit)
		err = do(limited, conn.JetStream())
		cancel()
		if err == nil || !conn.Lost() {
			return err
		}
	}
}

func (t *Trigger) applyVerdict(ctx context.Context, js jetstream.JetStream, r *route, it *item, v verdict) error {
	log := t.logger(r, it.meta).With("status", v.status, "reason", v.reason)
	switch v.kind {
	case verdictDone:
		return countSuccess(&r.acked, it.msg.DoubleAck(ctx))
	case verdictRefused:
		err := t.recordDeadLetter(ctx, js, r, it, v)
		if err == nil {
			log.Error("an event was refused and is now a dead letter")
			return countSuccess(&r.deadLettered, it.msg.Term())
		}
		log = log.With("error", err) // the dead letter is not stored: the event is retried below
	}
	delay, count := t.retryDelay(r, v, it.meta.NumDelivered), &r.retried
	if v.kind == verdictDenied {
		count = &r.denied
		log.Error(deniedText, "url", r.url)
	} else {
		log.Info("an event will be delivered again", "after", delay.String())
	}
	t.repeatIfReplaced(ctx, js, r, it.meta, v, delay)
	return countSuccess(count, it.msg.NakWithDelay(delay))
}

// retryDelay returns the wait before the next delivery. attempts counts the deliveries until now; v is the verdict
// of the last delivery. While the function is unavailable, the wait stays short unless Retry-After is longer, so that
// work resumes soon after the outage.
func (t *Trigger) retryDelay(r *route, v verdict, attempts uint64) time.Duration {
	backoff := retry.Jitter(retry.Delay(t.cfg.MinBackoff, t.cfg.MaxBackoff, int(attempts)))
	switch {
	case v.kind == verdictDenied:
		backoff = min(deniedBackoff, t.cfg.MaxBackoff)
	case v.unavailable && r.UnorderedBatch > 1:
		backoff = min(backoff, unorderedBackoffMax)
	case v.unavailable:
		backoff = min(backoff, unavailableBackoffMax)
	}
	return max(backoff, v.retryAfter)
}

// countSuccess adds 1 to count if err is nil, and returns err.
func countSuccess(count *atomic.Uint64, err error) error {
	if err == nil {
		count.Add(1)
	}
	return err
}
