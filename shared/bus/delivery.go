package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	settleTimeout = 10 * time.Second
	// resettleTimeout is for another connection: a server that was killed may not
	// remember the delivery, and then answers nobody.
	resettleTimeout       = time.Second
	deniedBackoff         = time.Minute      // after 401 and 403: somebody has to mend a setting
	unavailableBackoffMax = 10 * time.Second // while the function, or what it needs, is away
	retryAfterMax         = time.Hour
	responseReadLimit     = 64 << 10 // what is read of an answer, so that its connection can be used again
	reasonMax             = 500
)

// verdict is what becomes of a message after one delivery.
type verdict struct {
	kind        verdictKind
	status      int           // 0 when there was no answer
	reason      string        // for the log and the dead letter
	retryAfter  time.Duration // what Retry-After asked for
	unavailable bool          // nothing is wrong with the message: nobody was there, or asked to be called again
}

type verdictKind int

const (
	verdictDone    verdictKind = iota // 2xx
	verdictRetry                      // it may go well later
	verdictDenied                     // our own settings are wrong: later, loudly
	verdictRefused                    // the function will never take it
)

// deliver makes one delivery and settles the message by its outcome. The server
// hears from us while that lasts, so that no other trigger takes it for dead.
func (t *Trigger) deliver(ctx context.Context, r *route, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		t.bus.log.Error("a message without metadata", "route", r.Durable, "error", err)
		return
	}
	// A lost one is made up for by the next, or by another delivery.
	stop := heartbeat(r.AckWait/3, func() { _ = msg.InProgress() })
	defer stop()
	it := &item{msg, meta, newPostedEvent(msg, meta, &r.Route)}
	t.settleByVerdict(ctx, r, it, t.postInTurn(ctx, r, it.event.withAttempt(meta.NumDelivered)))
}

// postInTurn posts once there is a slot for it.
func (t *Trigger) postInTurn(ctx context.Context, r *route, event postedEvent) verdict {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
		return t.post(ctx, r, event)
	case <-ctx.Done():
		return verdict{kind: verdictRetry, reason: ctx.Err().Error()}
	}
}

// settleByVerdict settles a message by the outcome of its delivery.
func (t *Trigger) settleByVerdict(ctx context.Context, r *route, it *item, v verdict) {
	err := t.settle(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return t.applyVerdict(ctx, js, r, it.msg, it.meta, it.event, v)
	})
	if err != nil {
		t.logger(r, it.meta).Warn("settle an event: it will come again", "status", v.status, "error", err)
	}
}

// heartbeat tells the server every so often, by beat, what is being worked on.
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
	text, err := io.ReadAll(io.LimitReader(resp.Body, responseReadLimit))
	if err != nil && resp.StatusCode/100 != 2 {
		return verdict{kind: verdictRetry, status: resp.StatusCode, reason: err.Error()}
	}
	return verdictOf(resp, text)
}

// statusClientClosedRequest answers a call that was cancelled before it was done.
const statusClientClosedRequest = 499

func verdictOf(resp *http.Response, text []byte) verdict {
	v := verdict{
		status:     resp.StatusCode,
		reason:     oneLine(resp.Status + " " + string(text)),
		retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	v.unavailable = resp.StatusCode == http.StatusServiceUnavailable && v.retryAfter > 0
	switch s := resp.StatusCode; {
	case s/100 == 2:
		v.kind = verdictDone
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s/100 == 3:
		v.kind = verdictDenied
	case s == http.StatusNotFound, // a function that is just being deployed
		s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s == statusClientClosedRequest, s/100 == 5:
		v.kind = verdictRetry
	default:
		v.kind = verdictRefused
	}
	return v
}

// settle has the server told what became of a message, once more when the
// connection is lost meanwhile. What does not get through in time leaves the
// message to be delivered again.
func (t *Trigger) settle(ctx context.Context, tell func(context.Context, jetstream.JetStream) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for limit := settleTimeout; ; limit = resettleTimeout {
		l, err := t.bus.awaitConnection(ctx)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, limit)
		linked, unbind := l.untilLost(limited)
		err = tell(linked, l.js)
		unbind()
		cancel()
		if err == nil || l.ctx.Err() == nil {
			return err
		}
	}
}

func (t *Trigger) applyVerdict(ctx context.Context, js jetstream.JetStream, r *route, msg jetstream.Msg, meta *jetstream.MsgMetadata, event postedEvent, v verdict) error {
	log := t.logger(r, meta).With("status", v.status, "reason", v.reason)
	switch v.kind {
	case verdictDone:
		return countSuccess(&r.acked, msg.DoubleAck(ctx))
	case verdictRefused:
		err := t.deadLetter(ctx, js, r, msg, meta, event, v)
		if err == nil {
			log.Error("an event was refused and is now a dead letter")
			return countSuccess(&r.deadLettered, msg.Term())
		}
		log = log.With("error", err)
	case verdictDenied:
		log.Error("the function does not take our credentials or is elsewhere: mend the trigger's settings", "url", r.url)
		return countSuccess(&r.denied, msg.NakWithDelay(t.retryDelay(v, meta.NumDelivered)))
	}
	delay := t.retryDelay(v, meta.NumDelivered)
	log.Info("an event will be delivered again", "after", delay.String())
	return countSuccess(&r.retried, msg.NakWithDelay(delay))
}

// retryDelay is how long to wait after so many attempts, the last of which ended so.
// Once what was away is back nothing should rest for minutes.
func (t *Trigger) retryDelay(v verdict, attempts uint64) time.Duration {
	switch {
	case v.kind == verdictDenied:
		return max(min(deniedBackoff, t.cfg.MaxBackoff), v.retryAfter)
	case v.unavailable:
		return max(min(t.backoff(attempts), unavailableBackoffMax), v.retryAfter)
	}
	return max(t.backoff(attempts), v.retryAfter)
}

// countSuccess counts what went well.
func countSuccess(count *atomic.Uint64, err error) error {
	if err == nil {
		count.Add(1)
	}
	return err
}

// backoff doubles from MinBackoff to MaxBackoff; up to a quarter more is left to
// chance, so that what failed together does not come back together.
func (t *Trigger) backoff(attempts uint64) time.Duration {
	d := t.cfg.MinBackoff
	for n := uint64(1); n < attempts && d < t.cfg.MaxBackoff; n++ {
		d *= 2
	}
	d = min(d, t.cfg.MaxBackoff)
	return d + rand.N(d/4+1)
}

// retryAfter reads the header's two forms; 0 when there is none.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return min(max(time.Duration(seconds), 0), retryAfterMax/time.Second) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), retryAfterMax)
	}
	return 0
}

// oneLine makes text fit a header and a log line.
func oneLine(text string) string {
	text = strings.Map(printable, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	if len(text) > reasonMax {
		text = strings.ToValidUTF8(text[:reasonMax], "")
	}
	return text
}
