// Package webhooks is the function by which a caller says who is told of its
// tasks, and sees what became of the telling:
//
//	POST   /api/v1/webhooks/endpoints
//	GET    /api/v1/webhooks/endpoints
//	GET    /api/v1/webhooks/endpoints/{id}
//	DELETE /api/v1/webhooks/endpoints/{id}
//	POST   /api/v1/webhooks/endpoints/{id}/enable, .../disable
//	POST   /api/v1/webhooks/endpoints/{id}/rotate-secret
//	GET    /api/v1/webhooks/signing-secret
//	POST   /api/v1/webhooks/signing-secret/rotate
//	GET    /api/v1/webhooks/deliveries
//	GET    /api/v1/webhooks/deliveries/{id}
//	POST   /api/v1/webhooks/deliveries/{id}/resend
//
// Everything belongs to the caller that made it; another's does not exist for
// it. An admin reaches everybody's. A secret is shown when it is made, and the
// signing secret, which nobody registers, whenever its caller asks.
package webhooks

import (
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Function is this package's line in the catalogue.
var Function = fn.HTTP("webhooks", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	o := &office{db: env.DB(), env: env}
	const (
		endpoints  = "/api/v1/webhooks/endpoints"
		secret     = "/api/v1/webhooks/signing-secret"
		deliveries = "/api/v1/webhooks/deliveries"
	)
	return fn.Routes{
		"POST " + endpoints:                         fn.JSON(fn.Submitter, o.addEndpoint),
		"GET " + endpoints:                          fn.List(fn.Submitter, o.endpoints),
		"GET " + endpoints + "/{id}":                fn.List(fn.Submitter, o.endpoint),
		"DELETE " + endpoints + "/{id}":             fn.Query(fn.Submitter, o.deleteEndpoint),
		"POST " + endpoints + "/{id}/enable":        fn.Query(fn.Submitter, o.enableEndpoint),
		"POST " + endpoints + "/{id}/disable":       fn.Query(fn.Submitter, o.disableEndpoint),
		"POST " + endpoints + "/{id}/rotate-secret": fn.Query(fn.Submitter, o.rotateEndpoint),

		"GET " + secret:              fn.Query(fn.Submitter, o.signingSecret),
		"POST " + secret + "/rotate": fn.Query(fn.Submitter, o.rotateSigningSecret),

		"GET " + deliveries:                   fn.List(fn.Submitter, o.deliveries),
		"GET " + deliveries + "/{id}":         fn.Query(fn.Submitter, o.delivery),
		"POST " + deliveries + "/{id}/resend": fn.Query(fn.Submitter, o.resend),
	}
}

// office is where callers say who is to be told.
type office struct {
	db  *store.DB
	env *fn.Env
}

// nothing is the request of a route that takes none.
type nothing struct{}

// reach is whose things a call may touch: the caller's own, for an admin
// everybody's.
func reach(c *fn.Call) *int64 {
	if c.May(fn.Admin) {
		return nil
	}
	return &c.Caller.ID
}

// reachOf is reach narrowed to one caller, if the call asks for that.
func reachOf(c *fn.Call, caller *int64) (*int64, error) {
	switch {
	case caller == nil:
		return reach(c), nil
	case *caller == c.Caller.ID || c.May(fn.Admin):
		return caller, nil
	}
	return nil, task.Refuse(task.CodeForbidden, "this caller may not see what is another's")
}
