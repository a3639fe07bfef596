package fn

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/decode"
)

const (
	streamTimeout = 50 * time.Second
	maxStream     = time.Hour
)

// Stream returns a route that responds with server-sent events (text/event-stream) until handle
// returns. Req is decoded as for Parameters. A stream uses a slot of the pool
// waiting. The context of handle ends after Timeout (50 s by default, at most an hour), when the process
// drains, and when the caller was revoked or changed. Then handle must return, and the client is asked to
// reconnect after 250 ms.
//
// An error that handle returns before its first write is sent as on every route. After the first write, an
// error is only logged. After the timeout and during the drain, the error of handle is ignored.
func Stream[Req any](role Role, handle func(ctx context.Context, c *Call, req Req, w *EventWriter) error) Route {
	plan := decode.PlanOf[Req]()
	r := newRoute(role, nil).Timeout(streamTimeout)
	r.stream = func(ctx context.Context, c *Call, w *EventWriter) error {
		var req Req
		if err := plan.Parameters(c.request(), &req); err != nil {
			return err
		}
		return handle(ctx, c, req, w)
	}
	return r
}

// stream runs the handler of a stream until ctx ends, and returns the error to respond with or to log.
func (req *request) stream(ctx context.Context, p *mountedRoute) error {
	ctx, cancel := req.whileUnchanged(ctx)
	defer cancel(nil)
	w := &EventWriter{req: req, ctx: ctx, out: http.NewResponseController(req.w), cancel: cancel}
	defer w.end() // also if the handler panics
	err := p.stream(ctx, &req.call, w)
	refusal := revocationOf(ctx)
	clientLeft := errors.Is(req.r.Context().Err(), context.Canceled) // DeadlineExceeded would be a timeout of the framework's server
	refusedAtStart := refusal != nil && req.status == 0
	if !clientLeft && !refusedAtStart && (err == nil || ctx.Err() != nil) {
		err = w.write([]byte("retry: 250\n\n")) // asks the client to reconnect after 250 ms
	}
	if lost := w.end(); lost != nil {
		req.code, req.err = "client_gone", lost
		return nil
	}
	return cmp.Or(refusal, err)
}
