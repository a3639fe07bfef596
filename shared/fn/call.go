package fn

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// A Call is one authenticated request as a function sees it. It belongs to one
// goroutine and is dead once the handler has returned.
type Call struct {
	Caller    callers.Caller // who calls; ID 0 is the pair of BASIC_AUTH_USERNAME and BASIC_AUTH_PASSWORD
	RequestID string         // at most 50 characters of A-Z a-z 0-9 . _ -
	SourceIP  string         // at most 45 characters; "" when the peer has no address
	UserAgent string         // valid UTF-8, cut at 500 characters
	Body      []byte         // as received, nil when there is none

	env    *Env
	roles  []Role // any of which the route asks for
	within bool   // the route holds admins to their queues
	r      *http.Request
	memory *callMemory
	answer http.Header
	status int
	attrs  []slog.Attr
	events *EventWriter // of a Stream
	seat   *seat

	correlation string // of a frame of a Socket
	badFields   int    // named in the answer to a batch
	itemsFailed int    // of a batch, by errors of the service
}

// PathValue gives the part of the path that matched {name} in the pattern.
func (c *Call) PathValue(name string) string { return c.r.PathValue(name) }

// Query gives the query string's parameters; malformed pairs are left out.
func (c *Call) Query() url.Values { return c.r.URL.Query() }

// RequestHeader gives the headers of the request. They must not be changed. A call that
// waits, or has begun to answer a stream, has none any more.
func (c *Call) RequestHeader() http.Header { return c.r.Header }

// Header gives the headers of the answer, to be added to. They are sent with
// errors too.
func (c *Call) Header() http.Header { return c.answer }

// Status sets another 2xx than 200 for an answer without error. With 204 the
// answer has no body.
func (c *Call) Status(code int) { c.status = code }

// Log adds attributes, as slog takes them, to the one line that is logged for
// this call. Phone numbers and contents do not belong there unmasked.
func (c *Call) Log(args ...any) {
	c.attrs = append(c.attrs, slog.Group("", args...).Value.Group()...)
}

// Correlate says about which message a frame of a Socket is, for the answer to
// one that is refused.
func (c *Call) Correlate(clientMsgID string) { c.correlation = text.Cut(clientMsgID, 255) }

// StartWaiting makes this one of the calls that wait, which have a bound of their own: call
// it before a long poll waits. An error says that there are too many; the poll may
// then answer with what is there already, and else with the error.
func (c *Call) StartWaiting() error {
	if err := c.seat.moveToWaiting(); err != nil {
		return err
	}
	c.dropHeaders()
	return nil
}

// dropHeaders keeps only the header that frames of a Socket are authenticated by: all
// headers may be much larger than what a waiting call is charged.
func (c *Call) dropHeaders() {
	kept := http.Header{}
	if given, ok := c.r.Header["Authorization"]; ok {
		kept["Authorization"] = given
	}
	c.r.Header, c.r.Trailer = kept, nil
}

// May says whether the caller has the role, or is an admin without queues. An admin
// with queues is one on the routes that are WithinQueues and nowhere else: it needs
// the other roles itself, and acts for itself in them.
func (c *Call) May(role Role) bool {
	return role != Admin && c.has(role) || c.has(Admin) && !c.HasQueues()
}

func (c *Call) has(role Role) bool { return slices.Contains(c.Caller.Roles, string(role)) }

// ActFor is the user for whom a call acts: the caller itself when name is "". An
// admin without queues may act for anybody, others for themselves.
func (c *Call) ActFor(name string) (string, error) {
	switch {
	case name == "" || name == c.Caller.Name:
		return c.Caller.Name, nil
	case c.May(Admin):
		return name, nil
	}
	return "", task.Refuse(task.CodeForbidden, "this caller may not act for "+name)
}

// HasQueues says whether the caller is limited to queues.
func (c *Call) HasQueues() bool { return len(c.Caller.Queues) > 0 }

// MayUseQueue says whether the caller may submit to and claim from the queue.
// A caller without a list of queues may use all.
func (c *Call) MayUseQueue(queue string) bool {
	return len(c.Caller.Queues) == 0 || slices.Contains(c.Caller.Queues, queue)
}

// MayUseBusinessType says whether the caller may order and look up subscribe
// messages of the business type. A caller without a list of types may use all.
func (c *Call) MayUseBusinessType(name string) bool {
	return len(c.Caller.BusinessTypes) == 0 || slices.Contains(c.Caller.BusinessTypes, name)
}

// request is what decode reads a request from.
func (c *Call) request() decode.Request {
	return decode.Request{Method: c.r.Method, Query: c.r.URL.RawQuery, Body: c.Body}
}

// Reserve takes n bytes for what a function is about to load, and waits for room. They
// are given back when the call ends.
func (c *Call) Reserve(ctx context.Context, n int) error {
	return c.memory.take(ctx, int64(n), false)
}

// TryReserve is Reserve without a wait.
func (c *Call) TryReserve(n int) error { return c.memory.tryTake(int64(n)) }

// Unreserve gives back all that the call has taken, when it only waits from now on.
func (c *Call) Unreserve() { c.memory.answer(0) }
