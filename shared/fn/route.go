package fn

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/decode"
)

const (
	defaultMaxBody = 64 << 10
	eventMaxBody   = 1 << 20
	batchMaxBody   = 2 << 20 // 1 MiB of data, perhaps as base64, and the attributes of 500 events
	defaultTimeout = 10 * time.Second
	eventTimeout   = 30 * time.Second
	// maxTimeout leaves the server's WriteTimeout room for the answer itself.
	maxTimeout = writeTimeout - 10*time.Second
)

// A Route is one pattern's handler together with who may call it and within
// which bounds. Make it with JSON, Query, List, Raw or Stream.
type Route struct {
	roles   []Role // any of them will do
	maxBody int64
	timeout time.Duration
	event   bool
	batch   bool // of events
	stream  bool
	list    bool // read as the role of lists
	changes bool // also by GET
	within  bool // see WithinQueues
	pages   bool
	handle  func(ctx context.Context, c *Call) (any, error)

	socket  func(ctx context.Context, c *Call, s *Socket) error // nil unless a WebSocket may be asked for
	origins []string                                            // beside the service's own
}

// MaxBody sets the largest body in bytes; a larger one is answered 413. The
// default is 64 KiB.
func (r Route) MaxBody(n int64) Route { r.maxBody = n; return r }

// Pages says that answers are pages of rows: few of a caller are made at once, and
// their rows are charged as they are read (see store.WithMeter).
func (r Route) Pages() Route { r.pages = true; return r }

// Or lets callers with another role in too.
func (r Route) Or(role Role) Route { r.roles = append(slices.Clone(r.roles), role); return r }

// Changes says that a GET of the route changes something: it is refused to web
// pages of other origins, as the other methods are of all routes.
func (r Route) Changes() Route { r.changes = true; return r }

// WithinQueues lets admins in that have queues. The handler then holds the call to
// the caller's queues (Call.MayUseQueue, Call.Operator), or what it answers belongs to no
// queue and to no caller. Without it a route for admins refuses every caller with
// queues, so that a new route is safe by default.
func (r Route) WithinQueues() Route { r.within = true; return r }

// Timeout sets the deadline of the context that a handler gets, 10 s by
// default and at most 50 s, except for a Stream: a long poll needs more than its
// longest wait.
func (r Route) Timeout(d time.Duration) Route { r.timeout = d; return r }

// JSON answers calls whose body is one JSON object, decoded strictly into Req
// (see decode.Object). What handle returns becomes the answer's data; nil leaves it
// out.
func JSON[Req any](role Role, handle func(ctx context.Context, c *Call, req Req) (any, error)) Route {
	plan := decode.PlanOf[Req]()
	return newRoute(role, func(ctx context.Context, c *Call) (any, error) {
		var req Req
		if err := plan.Body(c.request(), &req); err != nil {
			return nil, err
		}
		return handle(ctx, c, req)
	})
}

// Query answers calls whose Req comes from the query string. On POST a body,
// if there is one, is decoded over it, so GET and POST on one path can share a
// handler.
func Query[Req any](role Role, handle func(ctx context.Context, c *Call, req Req) (any, error)) Route {
	plan := decode.PlanOf[Req]()
	return newRoute(role, func(ctx context.Context, c *Call) (any, error) {
		var req Req
		if err := plan.Parameters(c.request(), &req); err != nil {
			return nil, err
		}
		return handle(ctx, c, req)
	})
}

// List is Query for what reads as the role of lists. Who makes the call is looked
// up over the same connection: a process that starts for it logs in once.
func List[Req any](role Role, handle func(ctx context.Context, c *Call, req Req) (any, error)) Route {
	r := Query(role, handle).Pages()
	r.list = true
	return r
}

// Raw answers calls whose body is read within its bound into c.Body and not
// decoded: for a function that must keep even what it refuses. Query parameters
// are refused.
func Raw(role Role, handle func(ctx context.Context, c *Call) (any, error)) Route {
	plan := decode.PlanOf[struct{}]()
	return newRoute(role, func(ctx context.Context, c *Call) (any, error) {
		if err := plan.Parameters(decode.Request{Query: c.r.URL.RawQuery}, &struct{}{}); err != nil {
			return nil, err
		}
		return handle(ctx, c)
	})
}

func newRoute(role Role, handle func(context.Context, *Call) (any, error)) Route {
	return Route{roles: []Role{role}, maxBody: defaultMaxBody, timeout: defaultTimeout, handle: handle}
}

// mountedRoute is a route under its pattern: what the mux finds.
type mountedRoute struct {
	Route
	mux      *mux
	function string
	pattern  string
}

// bodyCharge is what a body of n bytes costs on a route.
func (r *Route) bodyCharge(n int64) int64 {
	if r.batch {
		return eventFactor * n
	}
	return pieceCharge(n)
}
