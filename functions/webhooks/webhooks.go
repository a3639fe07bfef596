// Package webhooks is the function with which a caller registers webhook endpoints, and reads and resends the deliveries to them. The
// endpoints receive events of the caller's tasks and endpoints. Endpoints of admins may also receive alerts:
//
//	POST   /api/v1/webhooks/endpoints
//	GET    /api/v1/webhooks/endpoints
//	GET    /api/v1/webhooks/endpoints/{id}
//	DELETE /api/v1/webhooks/endpoints/{id}
//	POST   /api/v1/webhooks/endpoints/{id}/enable, .../disable
//	POST   /api/v1/webhooks/endpoints/{id}/rotate-secret
//	POST   /api/v1/webhooks/endpoints/{id}/test
//	GET    /api/v1/webhooks/signing-secret
//	POST   /api/v1/webhooks/signing-secret/rotate
//	GET    /api/v1/webhooks/deliveries
//	GET    /api/v1/webhooks/deliveries/{id}
//	POST   /api/v1/webhooks/deliveries/{id}/resend
//	POST   /api/v1/webhooks/deliveries/resend
//
// Endpoints and deliveries belong to a caller. Admins read and change those of all callers, and viewers read them, in both cases
// only if they are not limited to queues. For everyone else, the endpoints and deliveries of other callers do not exist. The secret
// of an endpoint is returned only when it is created or rotated, the secret of a robot never, and the caller's signing secret at any
// time.
package webhooks

import "github.com/sendonce/sendonce/shared/fn"

// Function serves the routes of webhook endpoints and their deliveries.
var Function = fn.HTTP("webhooks", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	h := &handlers{env}
	const (
		endpoints  = "/api/v1/webhooks/endpoints"
		secret     = "/api/v1/webhooks/signing-secret"
		deliveries = "/api/v1/webhooks/deliveries"
	)
	return fn.Routes{
		"POST " + endpoints:                         fn.JSON(fn.Submitter, h.addEndpoint),
		"GET " + endpoints:                          fn.Read(fn.Submitter, h.listEndpoints).Or(fn.Viewer),
		"GET " + endpoints + "/{id}":                fn.Read(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.getEndpoint)).Or(fn.Viewer),
		"DELETE " + endpoints + "/{id}":             fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.deleteEndpoint)),
		"POST " + endpoints + "/{id}/enable":        fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.enableEndpoint)),
		"POST " + endpoints + "/{id}/disable":       fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.disableEndpoint)),
		"POST " + endpoints + "/{id}/rotate-secret": fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.rotateEndpointSecret)),
		"POST " + endpoints + "/{id}/test":          fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "endpoint", h.testEndpoint)),

		"GET " + secret:              fn.Parameters(fn.Submitter, h.getSigningSecret),
		"POST " + secret + "/rotate": fn.Parameters(fn.Submitter, h.rotateSigningSecret),

		"GET " + deliveries:                   fn.Read(fn.Submitter, h.listDeliveries).Or(fn.Viewer),
		"GET " + deliveries + "/{id}":         fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "delivery", h.getDelivery)).Or(fn.Viewer),
		"POST " + deliveries + "/{id}/resend": fn.Parameters(fn.Submitter, fn.WithID((*fn.Call).ID, "delivery", h.resendDelivery)),
		"POST " + deliveries + "/resend":      fn.JSON(fn.Submitter, h.resendFailed),
	}
}
