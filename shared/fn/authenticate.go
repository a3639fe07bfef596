package fn

import (
	"context"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// inProcessCaller is a key of contexts. The value is the caller for whom a page makes a call. The context of a request
// from outside has no such value.
type inProcessCaller struct{}

// authenticate returns the caller of the Basic credentials, and limits failed logins. If a page makes the
// call, authenticate returns the caller of the visitor's session. readRole is true if the call reads with
// SENDONCE_READ_ROLE.
func (req *request) authenticate(ctx context.Context, readRole bool) (callers.Caller, error) {
	if caller, ok := ctx.Value(inProcessCaller{}).(callers.Caller); ok {
		return caller, nil
	}
	name, password, ok := req.r.BasicAuth()
	if !ok {
		return callers.Caller{}, auth.ErrCredentials
	}
	return req.env.auth.Authenticate(ctx, auth.Login{Name: name, Password: password, Address: httpserver.ClientNetwork(req.call.SourceIP), Began: req.start, ForList: readRole})
}
