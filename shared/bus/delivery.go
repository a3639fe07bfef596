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
	resettleTimeout = time.Second
	deniedBackoff   = time.Minute      // after 401 and 403: somebody has to mend a setting
	awayBackoffMax  = 10 * time.Second // while the function, or what it needs, is away
	retryAfterMax   = time.Hour
	answerMax       = 64 << 10 // what is read of an answer, so that its connection can be used again
	reasonMax       = 500
)

// verdict is what becomes of a message after one delivery.
type verdict struct {
	kind   verdictKind
	status int           // 0 when there was no answer
	reason string        // for the log and the dead letter
	after  time.Duration // what Retry-After asked for
	away   bool          // nothing is wrong with the message: nobody was there, or asked to be called again
}

type verdictKind int

const (
	done   verdictKind = iota // 2xx
	again                     // it may go well later
	denied                    // our own settings are wrong: later, loudly
	dead                      // the function will never take it
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
	it := &item{msg, meta, eventOf(msg, meta, &r.Route)}
	t.settleOne(ctx, r, it, t.postInTurn(ctx, r, it.event.attempt(meta.NumDelivered)))
}

// postInTurn posts once there is a slot for it.
func (t *Trigger) postInTurn(ctx context.Context, r *route, event delivered) verdict {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
		return t.post(ctx, r, event)
	case <-ctx.Done():
		return verdict{kind: again, reason: ctx.Err().Error()}
	}
}

// settleOne settles a message by the outcome of its delivery.
func (t *Trigger) settleOne(ctx context.Context, r *route, it *item, v verdict) {
	err := t.settle(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return t.tell(ctx, js, r, it.msg, it.meta, it.event, v)
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

func (t *Trigger) post(ctx context.Context, r *route, event delivered) verdict {
	if event.foreign {
		return verdict{kind: dead, reason: fmt.Sprintf("an event of type %q does not belong to its subject", event.headers["ce-type"])}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(event.data))
	if err != nil {
		return verdict{kind: again, reason: err.Error()}
	}
	for name, value := range event.headers {
		req.Header.Set(name, value)
	}
	req.SetBasicAuth(t.cfg.User, t.cfg.Password)
	r.deliveries.Add(1)
	r.underWay.Add(1)
	began := time.Now()
	v := t.call(req)
	r.underWay.Add(-1)
	if t.cfg.OnDelivery != nil {
		t.cfg.OnDelivery(Delivery{Durable: r.Durable, Function: r.Function, Status: v.status, Took: time.Since(began)})
	}
	return v
}

func (t *Trigger) call(req *http.Request) verdict {
	resp, err := t.client.Do(req)
	if err != nil {
		var op *net.OpError
		return verdict{kind: again, reason: err.Error(), away: errors.As(err, &op) && op.Op == "dial"}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil && resp.StatusCode/100 != 2 {
		return verdict{kind: again, status: resp.StatusCode, reason: err.Error()}
	}
	return judge(resp, text)
}

// statusClientGone answers a call that was cancelled before it was done.
const statusClientGone = 499

func judge(resp *http.Response, text []byte) verdict {
	v := verdict{
		status: resp.StatusCode,
		reason: oneLine(resp.Status + " " + string(text)),
		after:  retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	v.away = resp.StatusCode == http.StatusServiceUnavailable && v.after > 0
	switch s := resp.StatusCode; {
	case s/100 == 2:
		v.kind = done
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s/100 == 3:
		v.kind = denied
	case s == http.StatusNotFound, // a function that is just being deployed
		s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s == statusClientGone, s/100 == 5:
		v.kind = again
	default:
		v.kind = dead
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
		l, err := t.bus.await(ctx)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, limit)
		linked, unbind := l.bound(limited)
		err = tell(linked, l.js)
		unbind()
		cancel()
		if err == nil || l.ctx.Err() == nil {
			return err
		}
	}
}

func (t *Trigger) tell(ctx context.Context, js jetstream.JetStream, r *route, msg jetstream.Msg, meta *jetstream.MsgMetadata, event delivered, v verdict) error {
	log := t.logger(r, meta).With("status", v.status, "reason", v.reason)
	switch v.kind {
	case done:
		return counted(&r.acked, msg.DoubleAck(ctx))
	case dead:
		err := t.bury(ctx, js, r, msg, meta, event, v)
		if err == nil {
			log.Error("an event was refused and is now a dead letter")
			return counted(&r.deadLettered, msg.Term())
		}
		log = log.With("error", err)
	case denied:
		log.Error("the function does not take our credentials or is elsewhere: mend the trigger's settings", "url", r.url)
		return counted(&r.denied, msg.NakWithDelay(t.pause(v, meta.NumDelivered)))
	}
	delay := t.pause(v, meta.NumDelivered)
	log.Info("an event will be delivered again", "after", delay.String())
	return counted(&r.retried, msg.NakWithDelay(delay))
}

// pause is how long to wait after so many attempts, the last of which ended so.
// Once what was away is back nothing should rest for minutes.
func (t *Trigger) pause(v verdict, attempts uint64) time.Duration {
	switch {
	case v.kind == denied:
		return max(min(deniedBackoff, t.cfg.MaxBackoff), v.after)
	case v.away:
		return max(min(t.backoff(attempts), awayBackoffMax), v.after)
	}
	return max(t.backoff(attempts), v.after)
}

// counted counts what went well.
func counted(count *atomic.Uint64, err error) error {
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
