package fn

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// run does the steps of a call from the origin check to the handler, in the order of the package comment, and returns
// the result of the handler.
func (req *request) run(ctx context.Context, p *mountedRoute) (any, error) {
	if err := p.mux.origins.check(req.r, p.changesState); err != nil {
		return nil, err
	}
	caller, err := req.authenticateFor(ctx, p)
	if err != nil {
		return nil, err
	}
	req.call.Caller = caller
	if err := req.call.checkRole(); err != nil {
		return nil, err
	}
	if err := req.acquireSlot(p); err != nil {
		return nil, err
	}
	if req.call.memory, err = req.env.budget.enter(caller.QuotaName(), req.call.May(Admin), p.event); err != nil {
		return nil, err
	}
	recheck := func(ctx context.Context) error {
		_, err := req.call.Recheck(ctx)
		return err
	}
	if err := req.readBodyWithoutSlot(ctx, p, recheck); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if !p.event { // the work for an event concerns many callers
		ctx = store.WithCaller(ctx, req.call.Caller.Account())
	}
	if p.paged {
		if err := req.call.memory.reserve(ctx, 0, true); err != nil {
			return nil, err
		}
		ctx = store.WithMeter(ctx, func(bytes int) error { return req.call.memory.tryReserve(rowFactor * int64(bytes)) })
	}
	switch {
	case p.socket != nil && isUpgrade(req.r.Header):
		return nil, req.socket(ctx, p)
	case p.stream != nil:
		return nil, req.stream(ctx, p)
	}
	var out any
	err = req.env.db.Durably(ctx, func() (err error) {
		out, err = p.handle(ctx, &req.call)
		return err
	})
	return out, err
}

// authenticateFor is authenticate for a route, which may also accept tokens (see Route.TokenInURL).
func (req *request) authenticateFor(ctx context.Context, p *mountedRoute) (callers.Caller, error) {
	if p.token && len(req.r.Header.Values("Authorization")) == 0 && !isUpgrade(req.r.Header) {
		if token := req.r.URL.Query().Get("token"); token != "" {
			return req.callerOfToken(ctx, token)
		}
	}
	return req.authenticate(ctx, p.readRole)
}
