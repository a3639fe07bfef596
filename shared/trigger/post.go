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
	"time"

	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

// FunctionHeader is the header of a response in which an event function gives its name. A response without it came from
// something in between, such as a proxy, and does not prove that the function handled the event.
const FunctionHeader = "Sendonce-Function"

const (
	retryAfterMax     = time.Hour
	responseReadLimit = 64 << 10 // bytes that are read of a response; after a longer response the connection is not reused
	reasonMax         = 500      // bytes
)

// verdict is the outcome of one POST, or of an event that is not posted because it is misplaced.
type verdict struct {
	kind        verdictKind
	status      int           // 0 without a response
	reason      string        // for the log and the dead letter
	retryAfter  time.Duration // from the Retry-After header
	unavailable bool          // the function was unreachable or busy: the message is not at fault
}

type verdictKind int

const (
	verdictDone    verdictKind = iota // 2xx of the function
	verdictRetry                      // may succeed later, or the response is not of the function
	verdictDenied                     // the trigger's settings are wrong: the event is retried, and an error is logged
	verdictRefused                    // the function will never accept the event
)

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
	r.posting.Add(1)
	began := time.Now()
	v := t.call(req, r.Function)
	r.posting.Add(-1)
	if t.cfg.OnDelivery != nil {
		t.cfg.OnDelivery(r.Durable, r.Function, v.status, time.Since(began))
	}
	return v
}

func (t *Trigger) call(req *http.Request, function string) verdict {
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
	return verdictOf(resp, body, function)
}

// statusClientClosedRequest is the status that a function returns if the caller has cancelled the call.
const statusClientClosedRequest = 499

func verdictOf(resp *http.Response, body []byte, function string) verdict {
	v := verdict{
		status:     resp.StatusCode,
		reason:     oneLine(resp.Status + " " + string(body)),
		retryAfter: retry.After(resp.Header, time.Now(), retryAfterMax),
	}
	v.unavailable = resp.StatusCode == http.StatusServiceUnavailable && v.retryAfter > 0
	switch s := resp.StatusCode; {
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s/100 == 3:
		v.kind = verdictDenied
	case resp.Header.Get(FunctionHeader) != function:
		v.kind, v.reason, v.retryAfter = verdictRetry, oneLine("this is not a response of the function "+function+": "+v.reason), 0
		v.unavailable = s/100 != 5 || s == http.StatusServiceUnavailable // not after 500, 502 and 504: the message may have crashed the function
	case s/100 == 2:
		v.kind = verdictDone
	case s == http.StatusNotFound, s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly,
		s == http.StatusTooManyRequests, s == statusClientClosedRequest, s/100 == 5:
		v.kind = verdictRetry
	default:
		v.kind = verdictRefused
	}
	return v
}

// oneLine returns s as one line of at most reasonMax bytes, for a header and the log.
func oneLine(s string) string {
	s = text.Line(s)
	if len(s) > reasonMax {
		s = strings.ToValidUTF8(s[:reasonMax], "")
	}
	return s
}
