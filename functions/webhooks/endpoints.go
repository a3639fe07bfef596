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
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

const maxDescription = 200

// endpointRequest is api.EndpointRequest with its rules.
type endpointRequest api.EndpointRequest

func (r *endpointRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.When(!decode.ValidURL(r.URL), "url", "is required: "+decode.URLRule)
	bad.AtMost("description", r.Description, maxDescription)
	for i, event := range r.Events {
		at := fmt.Sprintf("events[%d]", i)
		bad.When(!isEventKind(event), at, "must be webhook.disabled, alert.raised or alert.cleared, or task. and a state: scheduled, pending, processing, held, succeeded or failed")
		bad.When(slices.Contains(r.Events[:i], event), at, "is named twice")
	}
	return bad
}

// isEventKind reports whether there are events of this kind.
func isEventKind(kind string) bool {
	state, isTask := strings.CutPrefix(kind, "task.")
	_, known := task.ParseState(state)
	return isTask && known || kind == "webhook.disabled" || isAlert(kind)
}

func isAlert(kind string) bool { return kind == "alert.raised" || kind == "alert.cleared" }

func (h *handlers) addEndpoint(ctx context.Context, c *fn.Call, req endpointRequest) (any, error) {
	for i, event := range req.Events {
		if isAlert(event) && !c.May(fn.Admin) {
			return nil, task.Invalid([]task.Field{{Name: fmt.Sprintf("events[%d]", i), Message: "must not be an alert: only an admin may subscribe to alerts"}})
		}
	}
	secret := api.NewWebhookSecret()
	e, err := h.webhooks.AddEndpoint(ctx, webhooks.NewEndpoint{
		CallerID: c.Caller.ID, URL: req.URL, Description: req.Description, Events: req.Events, Secret: secret,
	}, c.Operator(""))
	return withSecret(e, secret), err
}

// endpointsRequest is api.EndpointsRequest with its rules.
type endpointsRequest api.EndpointsRequest

func (r *endpointsRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.PageByID(r.Limit, r.After)
	return bad
}

func (h *handlers) endpoints(ctx context.Context, c *fn.Call, req endpointsRequest) (any, error) {
	of, err := visibleToIf(c, (*int64)(req.CallerID))
	if err != nil {
		return nil, err
	}
	after, _ := task.ParseID(req.After) // valid, or absent and zero
	rows, more, err := h.webhooks.Endpoints(ctx, of, after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, endpointResponse, func(e webhooks.Endpoint) task.ID { return e.ID }), err
}

func (h *handlers) endpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.webhooks.Endpoint(ctx, id, visibleTo(c))
	return endpointResponse(e), err
}

// deleteEndpoint wakes sweep, which ends what the deletion itself left pending.
func (h *handlers) deleteEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	if err := h.webhooks.DeleteEndpoint(ctx, id, visibleTo(c), c.Operator("")); err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(time.Now())
	c.Status(http.StatusNoContent)
	return nil, nil
}

// enableEndpoint wakes deliver, as deliveries to the endpoint are due again.
func (h *handlers) enableEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.webhooks.EnableEndpoint(ctx, id, visibleTo(c), c.Operator(""))
	if err != nil {
		return nil, err
	}
	h.env.WakeDeliverAt(time.Time{})
	return endpointResponse(e), nil
}

func (h *handlers) disableEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.webhooks.DisableEndpoint(ctx, id, visibleTo(c), c.Operator(""))
	return endpointResponse(e), err
}

func (h *handlers) rotateEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	secret := api.NewWebhookSecret()
	e, err := h.webhooks.RotateEndpoint(ctx, id, visibleTo(c), secret, c.Operator(""))
	return withSecret(e, secret), err
}

// signingSecret returns the secret, and makes one if there is none.
func (h *handlers) signingSecret(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	s, err := h.webhooks.SigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret())
	return signingSecretResponse(s), err
}

func (h *handlers) rotateSigningSecret(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	s, err := h.webhooks.RotateSigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret(), c.Operator(""))
	return signingSecretResponse(s), err
}

func signingSecretResponse(s webhooks.SigningSecret) api.SigningSecretResponse {
	return api.SigningSecretResponse{Secret: s.Secret, OldSecretUntil: fn.UTC(s.OldUntil)}
}

func endpointResponse(e webhooks.Endpoint) api.EndpointResponse {
	return api.EndpointResponse{
		ID: e.ID.String(), CallerID: api.ID(e.CallerID), URL: e.URL, Description: e.Description, Events: append([]string{}, e.Events...),
		Enabled: e.Enabled, DisabledReason: e.DisabledReason, DisabledAt: fn.UTC(e.DisabledAt), FailingSince: fn.UTC(e.FailingSince),
		CreatedAt: e.CreatedAt.UTC(), RotatedAt: fn.UTC(e.RotatedAt), OldSecretUntil: fn.UTC(e.OldSecretUntil),
	}
}

// withSecret is the only answer that shows an endpoint's secret.
func withSecret(e webhooks.Endpoint, secret string) api.EndpointResponse {
	answer := endpointResponse(e)
	answer.Secret = secret
	return answer
}
