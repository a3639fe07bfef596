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

// A Call is one authenticated request, or one frame of a Socket. A Call must be used by one goroutine at a time, and
// not after the handler has returned.
type Call struct {
	Caller    callers.Caller // ID 0 is the built-in admin (BASIC_AUTH_USERNAME)
	RequestID string         // at most 50 characters of A-Z a-z 0-9 . _ -
	SourceIP  string         // at most 45 characters; "" = unknown
	UserAgent string         // valid UTF-8, cut at 500 characters
	Body      []byte         // as received; nil = none

	env          *Env
	roles        []Role // of the route; the caller needs one of them
	withinQueues bool   // the route also allows admins who are limited to queues
	r            *http.Request
	memory       *callMemory
	header       http.Header
	status       int
	attrs        []slog.Attr
	slot         *slot

	correlation string // client_msg_id of a frame of a Socket
	badFields   int    // invalid fields of the items of a batch so far
	itemsFailed int    // items of a batch that failed with a 5xx so far
}

// PathValue returns the part of the path that matched {name} in the pattern.
func (c *Call) PathValue(name string) string { return c.r.PathValue(name) }

// Query returns the well-formed parameters of the query string.
func (c *Call) Query() url.Values { return c.r.URL.Query() }

// RequestHeader returns the headers of the request, which must not be changed. Only Authorization is
// left after StartWaiting, and once a stream or socket has begun.
func (c *Call) RequestHeader() http.Header { return c.r.Header }

// Header returns the headers of the response. The handler may set headers; they are also sent if the
// handler returns an error.
func (c *Call) Header() http.Header { return c.header }

// Status sets the 2xx status of a response without error; the default is 200. A 204 has no body.
func (c *Call) Status(code int) { c.status = code }

// Log adds attributes, in the form that slog accepts, to the log line of this call. Phone numbers
// must be masked, and contents must not be logged.
func (c *Call) Log(args ...any) {
	c.attrs = append(c.attrs, slog.Group("", args...).Value.Group()...)
}

// Correlate is for a frame of a Socket. It sets the client_msg_id of the error frame that the client gets if the frame
// is refused.
func (c *Call) Correlate(clientMsgID string) { c.correlation = text.Cut(clientMsgID, 255) }

// StartWaiting must be called before a long poll waits: waiting calls have limits of their own, for the
// process and for each caller. It returns an error if one of them is reached. Then the poll must return
// without waiting.
func (c *Call) StartWaiting() error {
	if err := c.slot.moveToWaiting(); err != nil {
		return err
	}
	c.dropHeaders()
	return nil
}

// dropHeaders keeps only Authorization, which authenticates the frames of a Socket. The other headers
// may be much larger than the memory that a waiting call is charged.
func (c *Call) dropHeaders() {
	header := http.Header{}
	if values, ok := c.r.Header["Authorization"]; ok {
		header["Authorization"] = values
	}
	c.r.Header, c.r.Trailer = header, nil
}

// May reports whether the caller has the role or is an admin who is not limited to queues. May(Admin) is false for an
// admin who is limited to queues: of the routes for admins, such an admin may use only those marked WithinQueues.
func (c *Call) May(role Role) bool {
	return role != Admin && c.HasRole(role) || c.HasRole(Admin) && !c.LimitedToQueues()
}

// HasRole reports whether the caller was given this role, whatever its queues. The role Admin does not include
// other roles here.
func (c *Call) HasRole(role Role) bool { return slices.Contains(c.Caller.Roles, string(role)) }

// ReadsAll reports whether the caller may read what belongs to other callers. Only admins and viewers may, and only if
// they are not limited to queues.
func (c *Call) ReadsAll() bool { return c.May(Viewer) && !c.LimitedToQueues() }

// ReadScope returns the id of the caller whose objects may be read: the caller's own id, or nil (all callers) if ReadsAll.
func (c *Call) ReadScope() *int64 {
	if c.ReadsAll() {
		return nil
	}
	return &c.Caller.ID
}

// SeesOnlyHosts reports whether the caller sees only the host of other callers' URLs, because it is a viewer and no
// admin. The rest of a URL may be a secret: anyone who knows it can post to the URL.
func (c *Call) SeesOnlyHosts() bool { return c.HasRole(Viewer) && !c.HasRole(Admin) }

// ShownURL returns a URL of another caller, reduced to its host if this caller SeesOnlyHosts.
func (c *Call) ShownURL(url string) string {
	if c.SeesOnlyHosts() {
		return task.MaskURL(url)
	}
	return url
}

// UserToActFor returns the name of the user for whom the call acts: name, or the caller's own name if name is "". It
// returns an error if name is not the caller's own, unless the caller is an admin who is not limited to queues.
func (c *Call) UserToActFor(name string) (string, error) {
	switch {
	case name == "" || name == c.Caller.Name:
		return c.Caller.Name, nil
	case c.May(Admin):
		return name, nil
	}
	return "", task.Refuse(task.CodeForbidden, "this caller may not act for "+name+"; only an admin who is not limited to queues may")
}

// LimitedToQueues reports whether the caller is limited to queues.
func (c *Call) LimitedToQueues() bool { return len(c.Caller.Queues) > 0 }

// MayUseQueue reports whether the caller's list of queues allows the queue, whatever the caller's roles. A caller
// without a list of queues may use all queues.
func (c *Call) MayUseQueue(queue string) bool {
	return !c.LimitedToQueues() || slices.Contains(c.Caller.Queues, queue)
}

// MayUseBusinessType reports whether the caller may submit and read subscribe messages of the
// business type. A caller without a list of business types may use all of them.
func (c *Call) MayUseBusinessType(name string) bool {
	return len(c.Caller.BusinessTypes) == 0 || slices.Contains(c.Caller.BusinessTypes, name)
}

// request returns what package decode needs.
func (c *Call) request() decode.Request {
	return decode.Request{Method: c.r.Method, Query: c.r.URL.RawQuery, Body: c.Body}
}

// Reserve reserves n bytes of memory for data that the function is about to load. It waits for room for up to
// 2 s, or 20 s in an event function (POST /events/{name}), and then returns an error. The memory is released when the call ends.
func (c *Call) Reserve(ctx context.Context, n int) error {
	return c.memory.reserve(ctx, int64(n), false)
}

// TryReserve is Reserve without a wait.
func (c *Call) TryReserve(n int) error { return c.memory.tryReserve(int64(n)) }

// Unreserve ends the reservation of all memory of the call, its body included: the handler must no longer
// use the body or the data that it reserved memory for. A long poll calls Unreserve before it waits.
func (c *Call) Unreserve() { c.memory.resize(0) }

// AcquireRead waits until the handler of a stream or socket may read events: of one caller, at most readsAtOnce
// handlers read at a time. Call done after the read.
func (c *Call) AcquireRead(ctx context.Context) (done func(), err error) {
	return c.env.reads.acquire(ctx, c.Caller.QuotaName())
}
