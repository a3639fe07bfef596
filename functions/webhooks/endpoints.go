package webhooks

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxDescription = 200
	oneEndpoint    = "endpoint"
)

// endpointRequest is api.EndpointRequest with its rules.
type endpointRequest api.EndpointRequest

// Validate names every field whose value is not acceptable.
func (r *endpointRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.When(!decode.ValidURL(r.URL), "url", "is required: "+decode.URLRule)
	bad.AtMost("description", r.Description, maxDescription)
	for i, event := range r.Events {
		at := fmt.Sprintf("events[%d]", i)
		bad.When(!isKind(event), at, "must be webhook.disabled, alert.raised or alert.cleared, or task. and a state: scheduled, pending, processing, held, succeeded or failed")
		bad.When(slices.Contains(r.Events[:i], event), at, "is named twice")
	}
	return bad
}

// isKind tells whether there are events of this kind.
func isKind(word string) bool {
	state, isTask := strings.CutPrefix(word, "task.")
	_, known := task.ParseState(state)
	return isTask && known || word == "webhook.disabled" || isAlert(word)
}

func isAlert(word string) bool { return word == "alert.raised" || word == "alert.cleared" }

func (o *office) addEndpoint(ctx context.Context, c *fn.Call, req endpointRequest) (any, error) {
	for i, event := range req.Events {
		if isAlert(event) && !c.May(fn.Admin) {
			return nil, task.Invalid([]task.Field{{Name: fmt.Sprintf("events[%d]", i), Message: "only admins are told of alerts"}})
		}
	}
	secret := api.NewWebhookSecret()
	e, err := o.db.AddEndpoint(ctx, store.NewEndpoint{
		CallerID: c.Caller.ID, URL: req.URL, Description: req.Description, Events: req.Events, Secret: secret,
	}, c.Operator(""))
	return withSecret(e, secret), err
}

// endpointsRequest is api.EndpointsRequest with its rules.
type endpointsRequest api.EndpointsRequest

// Validate names every field whose value is not acceptable.
func (r *endpointsRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.PageByID(r.Limit, r.After)
	return bad
}

func (o *office) endpoints(ctx context.Context, c *fn.Call, req endpointsRequest) (any, error) {
	of, err := reachOf(c, (*int64)(req.CallerID))
	if err != nil {
		return nil, err
	}
	after, _ := task.ParseID(req.After) // valid, or absent and zero
	rows, more, err := o.db.Endpoints(ctx, of, after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, endpointResponse, func(e store.Endpoint) task.ID { return e.ID }), err
}

func (o *office) endpoint(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneEndpoint)
	if err != nil {
		return nil, err
	}
	e, err := o.db.Endpoint(ctx, id, reach(c))
	return endpointResponse(e), err
}

func (o *office) deleteEndpoint(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneEndpoint)
	if err != nil {
		return nil, err
	}
	c.Status(http.StatusNoContent)
	return nil, o.db.DeleteEndpoint(ctx, id, reach(c), c.Operator(""))
}

// enableEndpoint has the deliveries that rested looked at.
func (o *office) enableEndpoint(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneEndpoint)
	if err != nil {
		return nil, err
	}
	e, err := o.db.EnableEndpoint(ctx, id, reach(c), c.Operator(""))
	if err != nil {
		return nil, err
	}
	o.env.WakeDeliverAt(time.Time{})
	return endpointResponse(e), nil
}

func (o *office) disableEndpoint(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneEndpoint)
	if err != nil {
		return nil, err
	}
	e, err := o.db.DisableEndpoint(ctx, id, reach(c), c.Operator(""))
	return endpointResponse(e), err
}

func (o *office) rotateEndpoint(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := c.ID(oneEndpoint)
	if err != nil {
		return nil, err
	}
	secret := api.NewWebhookSecret()
	e, err := o.db.RotateEndpoint(ctx, id, reach(c), secret, c.Operator(""))
	return withSecret(e, secret), err
}

// signingSecret makes the secret when there is none yet.
func (o *office) signingSecret(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	s, err := o.db.SigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret())
	return signingSecretResponse(s), err
}

func (o *office) rotateSigningSecret(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	s, err := o.db.RotateSigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret(), c.Operator(""))
	return signingSecretResponse(s), err
}

func signingSecretResponse(s store.SigningSecret) api.SigningSecretResponse {
	return api.SigningSecretResponse{Secret: s.Secret, OldSecretUntil: fn.UTC(s.OldUntil)}
}

func endpointResponse(e store.Endpoint) api.EndpointResponse {
	return api.EndpointResponse{
		ID: e.ID.String(), CallerID: api.ID(e.CallerID), URL: e.URL, Description: e.Description, Events: append([]string{}, e.Events...),
		Enabled: e.Enabled, DisabledReason: e.DisabledReason, DisabledAt: fn.UTC(e.DisabledAt), FailingSince: fn.UTC(e.FailingSince),
		CreatedAt: e.CreatedAt.UTC(), RotatedAt: fn.UTC(e.RotatedAt), OldSecretUntil: fn.UTC(e.OldSecretUntil),
	}
}

// withSecret is the only answer that shows an endpoint's secret.
func withSecret(e store.Endpoint, secret string) api.EndpointResponse {
	answer := endpointResponse(e)
	answer.Secret = secret
	return answer
}
