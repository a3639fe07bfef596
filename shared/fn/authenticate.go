package fn

import (
	"context"
	"errors"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// authenticate returns the caller of the Basic credentials, and limits failed logins. The caller of a call
// that a page makes is the visitor. list is true for a call that reads with the database role of lists.
func (req *request) authenticate(ctx context.Context, list bool) (callers.Caller, error) {
	if caller, ok := ctx.Value(inProcessCaller{}).(callers.Caller); ok {
		return caller, nil
	}
	name, password, ok := req.r.BasicAuth()
	if !ok {
		return callers.Caller{}, auth.ErrCredentials
	}
	return req.env.auth.Authenticate(ctx, auth.Login{Name: name, Password: password, Address: httpserver.ClientNetwork(req.call.SourceIP), Began: req.start, List: list})
}

// authenticateFor is authenticate for a route, which may also accept tokens (see Route.TokenInURL).
func (req *request) authenticateFor(ctx context.Context, p *mountedRoute) (callers.Caller, error) {
	if p.token && len(req.r.Header.Values("Authorization")) == 0 && !isUpgrade(req.r.Header) {
		if token := req.r.URL.Query().Get("token"); token != "" {
			return req.callerOfToken(ctx, token)
		}
	}
	return req.authenticate(ctx, p.listRole)
}

// withoutDatabase is the source of callers where DATABASE_URL is not set.
type withoutDatabase struct{}

var errNoDatabase = errors.New("DATABASE_URL is not set")

func (withoutDatabase) ByName(context.Context, string, bool) (callers.Caller, error) {
	return callers.Caller{}, errNoDatabase
}

func (withoutDatabase) Existing(context.Context, []string) ([]string, error) {
	return nil, errNoDatabase
}
