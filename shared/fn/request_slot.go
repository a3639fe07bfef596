package fn

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/httpserver"
)

// acquireSlot acquires a slot for the call, whose caller must be set, and keeps its connection open.
func (req *request) acquireSlot(p *mountedRoute) (err error) {
	if req.call.slot, err = req.env.limiter.acquireSlot(req.call.Caller, p.event, p.stream != nil); err == nil {
		req.releaseConnection = httpserver.KeepConnectionOpen(req.r.Context(), req.call.Caller.Account())
	}
	return err
}

func (req *request) releaseSlot() {
	if req.call.slot != nil {
		req.call.slot.release()
		req.releaseConnection()
	}
}

// readBodyWithoutSlot reads the body while other calls may use the call's slot (see callLimiter). Then it calls
// recheck, as the caller may have been revoked or changed meanwhile, and acquires a slot again. A call without a body
// keeps its slot, and its caller is not rechecked.
func (req *request) readBodyWithoutSlot(ctx context.Context, p *mountedRoute, recheck func(context.Context) error) error {
	if req.r.Body == nil || req.r.Body == http.NoBody {
		return req.readBody(ctx, p)
	}
	keepConnection := req.call.slot.startReading()
	if !keepConnection {
		req.releaseConnection()
		req.releaseConnection = func() {}
	}
	if err := req.readBody(ctx, p); err != nil {
		return err
	}
	if err := recheck(ctx); err != nil {
		return err
	}
	if err := req.call.slot.endReading(); err != nil {
		return err
	}
	if !keepConnection {
		req.releaseConnection = httpserver.KeepConnectionOpen(req.r.Context(), req.call.Caller.Account())
	}
	return nil
}
