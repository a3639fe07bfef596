package fn

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/httpserver"
)

// MaxEventBatch is the largest batch of events in bytes: 1 MiB of data, which base64 makes a third
// longer, and the attributes of 500 events.
const MaxEventBatch = 2 << 20

const (
	defaultMaxBody = 64 << 10
	eventMaxBody   = 1 << 20
	eventTimeout   = 30 * time.Second
	maxTimeout     = httpserver.WriteTimeout - 10*time.Second // 10 s are left for writing the response
)

// A Route is the handler of one pattern, with its limits and the roles that may call the handler. Make
// a Route with JSON, Parameters, Read, Raw, Stream or Page.
type Route struct {
	roles        []Role // a caller needs one of them
	maxBody      int64
	timeout      time.Duration
	event        bool // receives CloudEvents
	batch        bool // also receives batches of CloudEvents
	readRole     bool // the handler reads with the database role SENDONCE_READ_ROLE
	changesState bool // a GET changes state
	withinQueues bool // see WithinQueues
	paged        bool // see Paged
	token        bool // see TokenInURL
	handle       func(ctx context.Context, c *Call) (any, error)

	stream        func(ctx context.Context, c *Call, w *EventWriter) error // instead of handle, see Stream
	page          func(w http.ResponseWriter, v *Visit)                    // instead of handle, see Page
	socket        func(ctx context.Context, c *Call, s *Socket) error      // of a stream that can also be a WebSocket, else nil
	socketOrigins []string                                                 // of web pages that may open the WebSocket, in addition to the service's own
}

// MaxBody sets the largest body in bytes, 64 KiB by default. A larger body gets 413.
func (r Route) MaxBody(n int64) Route { r.maxBody = n; return r }

// Paged marks a route that returns a page of rows. Its calls are large ones (see memoryBudget), so few of
// one caller run at once. Each row is charged to the memory budget when the row is read (see
// store.WithMeter).
func (r Route) Paged() Route { r.paged = true; return r }

// Or also allows callers with another role.
func (r Route) Or(role Role) Route { r.roles = append(slices.Clone(r.roles), role); return r }

// Changes marks a route whose GET changes state. Such a GET is refused to web pages of other origins
// that are not trusted (see originCheck). On every route, all methods except GET are refused to them.
func (r Route) Changes() Route { r.changesState = true; return r }

// WithinQueues marks a route for admins that callers with one of its roles may also call if they are
// limited to some queues. The handler must limit the call to these queues: with Call.MayUseQueue, or with
// Call.AsOperator for a store that limits operators. A handler whose response is the same for all
// queues and callers need not. Without WithinQueues, a route for admins refuses every caller who is
// limited to queues.
func (r Route) WithinQueues() Route { r.withinQueues = true; return r }

// Timeout sets the timeout of the handler's context: by default 10 s, 20 s for a page and 50 s for a
// stream; at most 50 s, and an hour for a stream. The timeout of a long poll must be longer than its
// longest wait.
func (r Route) Timeout(d time.Duration) Route { r.timeout = d; return r }

// JSON returns a route for requests whose body is one JSON object. The body is decoded strictly into
// Req (see decode.Object). The value that handle returns is the data of the response; nil = no data.
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

// Parameters returns a route for requests that are decoded into Req from the query string and the JSON
// object in the body, so GET and POST of one path can share a handler. Fields of the body replace
// parameters of the same name. GET must have no body, and other methods need none.
func Parameters[Req any](role Role, handle func(ctx context.Context, c *Call, req Req) (any, error)) Route {
	plan := decode.PlanOf[Req]()
	return newRoute(role, func(ctx context.Context, c *Call) (any, error) {
		var req Req
		if err := plan.Parameters(c.request(), &req); err != nil {
			return nil, err
		}
		return handle(ctx, c, req)
	})
}

// Read is Parameters and Paged for a handler that reads with the database role SENDONCE_READ_ROLE. The caller is looked
// up with the same role, so a process that starts for this call opens only one connection.
func Read[Req any](role Role, handle func(ctx context.Context, c *Call, req Req) (any, error)) Route {
	r := Parameters(role, handle).Paged()
	r.readRole = true
	return r
}

// Raw returns a route whose body is not decoded: the handler reads c.Body. Raw is for a function that
// also stores the bodies that it refuses. Query parameters are refused.
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

// bodyCharge returns the memory to charge for a body of n bytes.
func (r *Route) bodyCharge(n int64) int64 {
	if r.batch {
		return eventFactor * n
	}
	return chunkCharge(n)
}
