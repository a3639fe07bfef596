package trigger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	settleTimeout         = 10 * time.Second
	resettleTimeout       = time.Second // on a second connection; a restarted server that lost the state of the delivery does not reply
	deniedText            = "the function rejected the trigger's credentials or redirected: check SENDONCE_TRIGGER_USER, SENDONCE_TRIGGER_PASSWORD and the base URL"
	deniedBackoff         = time.Minute      // after 401, 403 and redirects: an operator must correct a setting
	unavailableBackoffMax = 10 * time.Second // while the function or one of its dependencies is unavailable
	unorderedBackoffMax   = 2 * time.Second  // the same with UnorderedBatch, where waiting retries hold up other messages
	repeatDelayMax        = 10 * time.Second // before the trigger publishes a failed wake-up again
	retryAfterMax         = time.Hour
	responseReadLimit     = 64 << 10 // bytes of a response; a connection is reused only after the whole response was read
	reasonMax             = 500      // bytes
)

// verdict is the outcome of one delivery.
type verdict struct {
	kind        verdictKind
	status      int           // 0 without a response
	reason      string        // for the log and the dead letter
	retryAfter  time.Duration // from the Retry-After header
	unavailable bool          // the function was unreachable or busy: the message is not at fault
}

type verdictKind int

const (
	verdictDone    verdictKind = iota // 2xx
	verdictRetry                      // may succeed later
	verdictDenied                     // the trigger's settings are wrong: retried, and logged as an error
	verdictRefused                    // the function will never accept it
)

// deliver makes one delivery and settles the message by the verdict. Meanwhile it extends AckWait, so
// that no other trigger receives the message.
func (t *Trigger) deliver(ctx context.Context, r *route, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		t.log.Error("a message without metadata", "route", r.Durable, "error", err)
		return
	}
	// A lost heartbeat is followed by the next one, or the message is redelivered.
	stop := heartbeat(r.AckWait/3, func() { _ = msg.InProgress() })
	defer stop()
	it := &item{msg, meta, newPostedEvent(msg, meta, &r.Route)}
	t.settleByVerdict(ctx, r, it, t.postInSlot(ctx, r, it.event.withAttempt(meta.NumDelivered)))
}

// postInSlot waits for a free slot and posts.
func (t *Trigger) postInSlot(ctx context.Context, r *route, event postedEvent) verdict {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
		return t.post(ctx, r, event)
	case <-ctx.Done():
		return verdict{kind: verdictRetry, reason: ctx.Err().Error()}
	}
}

func (t *Trigger) settleByVerdict(ctx context.Context, r *route, it *item, v verdict) {
	err := t.settle(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return t.applyVerdict(ctx, js, r, it, v)
	})
	if err != nil {
		t.logger(r, it.meta).Warn("cannot settle an event: it will be delivered again", "status", v.status, "error", err)
	}
}

// heartbeat calls beat at an interval until stop.
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

func (t *Trigger) post(ctx context.Context, r *route, event postedEvent) verdict {
	if event.misplaced {
		return verdict{kind: verdictRefused, reason: fmt.Sprintf("an event of type %q does not belong to its subject", event.headers["ce-type"])}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(event.data))
	if err != nil {
		return verdict{kind: verdictRetry, reason: err.Error()}
	}
	for name, value := range event.headers {
		req.Header.Set(name, value)
	}
	req.SetBasicAuth(t.cfg.User, t.cfg.Password)
	r.deliveries.Add(1)
	r.inFlight.Add(1)
	began := time.Now()
	v := t.call(req)
	r.inFlight.Add(-1)
	if t.cfg.OnDelivery != nil {
		t.cfg.OnDelivery(Delivery{Durable: r.Durable, Function: r.Function, Status: v.status, Took: time.Since(began)})
	}
	return v
}

func (t *Trigger) call(req *http.Request) verdict {
	resp, err := t.client.Do(req)
	if err != nil {
		var op *net.OpError
		return verdict{kind: verdictRetry, reason: err.Error(), unavailable: errors.As(err, &op) && op.Op == "dial"}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, responseReadLimit))
	if err != nil && resp.StatusCode/100 != 2 {
		return verdict{kind: verdictRetry, status: resp.StatusCode, reason: err.Error()}
	}
	return verdictOf(resp, body)
}

// statusClientClosedRequest is the response to a call that was cancelled.
const statusClientClosedRequest = 499

func verdictOf(resp *http.Response, body []byte) verdict {
	v := verdict{
		status:     resp.StatusCode,
		reason:     oneLine(resp.Status + " " + string(body)),
		retryAfter: retry.After(resp.Header, time.Now(), retryAfterMax),
	}
	v.unavailable = resp.StatusCode == http.StatusServiceUnavailable && v.retryAfter > 0
	switch s := resp.StatusCode; {
	case s/100 == 2:
		v.kind = verdictDone
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s/100 == 3:
		v.kind = verdictDenied
	case s == http.StatusNotFound, // a function that is being deployed
		s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s == statusClientClosedRequest, s/100 == 5:
		v.kind = verdictRetry
	default:
		v.kind = verdictRefused
	}
	return v
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
		limited, cancel := context.WithTimeout(ctx, limit)
		connCtx, unbind := conn.UntilLost(limited)
		err = do(connCtx, conn.JetStream())
		unbind()
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
		err := t.deadLetter(ctx, js, r, it, v)
		if err == nil {
			log.Error("an event was refused and is now a dead letter")
			return countSuccess(&r.deadLettered, it.msg.Term())
		}
		log = log.With("error", err) // retried below
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
// of the last one. The wait stays short while the function is unavailable, so that work resumes soon after the
// outage.
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

// countSuccess adds to count if err is nil, and returns err.
func countSuccess(count *atomic.Uint64, err error) error {
	if err == nil {
		count.Add(1)
	}
	return err
}

// oneLine returns s as one line of at most reasonMax bytes, for a header and the log.
func oneLine(s string) string {
	s = text.Line(s)
	if len(s) > reasonMax {
		s = strings.ToValidUTF8(s[:reasonMax], "")
	}
	return s
}
