package fn

import (
	"context"

	"github.com/sendonce/sendonce/shared/decode"
)

// WithSocket also lets clients upgrade a Stream route to a WebSocket (RFC 6455, HTTP/1.1). Roles,
// timeout and drain are those of the stream. A socket uses a slot of the pool waiting, like a stream, and
// each frame uses a slot of the pool calls while it is handled. origins are the origins of web pages that
// may open a socket, in addition to the service's own.
//
// An error that handle returns before it calls Open is sent as on every route. After Open, the
// socket is closed when handle returns, with a close code for the error of handle (see Socket).
func WithSocket[Req any](r Route, origins []string, handle func(ctx context.Context, c *Call, req Req, s *Socket) error) Route {
	plan := decode.PlanOf[Req]()
	r.socketOrigins = origins
	r.socket = func(ctx context.Context, c *Call, s *Socket) error {
		var req Req
		if err := plan.Parameters(c.request(), &req); err != nil {
			return err
		}
		return handle(ctx, c, req, s)
	}
	return r
}

// socket runs the handler of a WebSocket until ctx ends, and returns the error to respond with or to log.
func (req *request) socket(ctx context.Context, p *mountedRoute) error {
	if err := req.checkUpgrade(p.socketOrigins); err != nil {
		return err
	}
	ctx, cancel := req.whileUnchanged(ctx)
	defer cancel(nil)
	s := &Socket{req: req, ctx: ctx, cancel: cancel, frameLock: make(chan struct{}, 1)}
	defer func() {
		if s.conn != nil {
			_ = s.conn.CloseNow() // for a handler that panics; after end this does nothing
		}
	}()
	return s.end(p.socket(ctx, &req.call, s))
}
