package webhooks

import (
	"cmp"
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
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxDescription = 200 // characters
	maxRobotSecret = 200 // characters
)

type endpointRequest api.EndpointRequest

func (r *endpointRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(!decode.ValidURL(r.URL), "url", "is required: "+decode.URLRule)
	bad.AtMost("description", r.Description, maxDescription)
	for i, event := range r.Events {
		field := fmt.Sprintf("events[%d]", i)
		bad.When(!isEventType(event), field, "must be webhook.disabled, alert.raised, alert.cleared, or \"task.\" with a state, such as task.failed: scheduled, pending, processing, held, succeeded or failed")
		bad.When(slices.Contains(r.Events[:i], event), field, "repeats an earlier event")
	}
	bad.When(r.Format != "" && !slices.Contains(webhooks.Formats, r.Format), "format", "must be one of "+strings.Join(webhooks.Formats, ", "))
	if isRobot(r.Format) {
		hasOther := slices.ContainsFunc(r.Events, func(event string) bool { return event != store.KindWebhookDisabled && !isAlertEvent(event) })
		bad.When(hasOther || len(r.Events) == 0, "events", "must be one or more of webhook.disabled, alert.raised and alert.cleared for the format "+r.Format+", and no others")
	}
	r.checkSecret(&bad)
	return bad
}

// isRobot reports whether endpoints of a format are chat robots. An endpoint without a format receives CloudEvents.
func isRobot(format string) bool { return format != "" && format != webhooks.FormatCloudEvents }

// checkSecret checks that a secret is given only for a robot of DingTalk or Feishu, and that it can be from the robot's settings.
func (r *endpointRequest) checkSecret(bad *decode.BadFields) {
	if r.Secret == "" {
		return
	}
	switch r.Format {
	case webhooks.FormatDingTalk, webhooks.FormatFeishu:
		unprintable := strings.ContainsFunc(r.Secret, func(c rune) bool { return c <= ' ' || c > '~' })
		bad.When(unprintable || len(r.Secret) > maxRobotSecret, "secret", "must be what the robot's settings show, at most 200 letters, digits and signs without blanks")
	case webhooks.FormatSlack, webhooks.FormatWeCom:
		bad.When(true, "secret", "must be left out: robots of Slack and WeCom take no signature; anyone who knows the URL can post there")
	case "", webhooks.FormatCloudEvents:
		bad.When(true, "secret", "must be left out for cloudevents: the response shows the secret that Sendonce makes")
	}
}

// isEventType reports whether an endpoint can subscribe to events of type t.
func isEventType(t string) bool {
	state, isTask := strings.CutPrefix(t, "task.")
	_, known := task.ParseState(state)
	return isTask && known || t == store.KindWebhookDisabled || isAlertEvent(t)
}

func isAlertEvent(t string) bool { return t == "alert.raised" || t == "alert.cleared" }

func (h *handlers) addEndpoint(ctx context.Context, c *fn.Call, req endpointRequest) (any, error) {
	var bad decode.BadFields
	for i, event := range req.Events {
		bad.When(isAlertEvent(event) && !c.May(fn.Admin), fmt.Sprintf("events[%d]", i), "must not be an alert: only an admin may subscribe to alerts")
	}
	bad.AllowedHost("url", req.URL, h.env.Config.OutgoingNetworks)
	if len(bad) > 0 {
		return nil, task.Invalid(bad)
	}
	newSecret := "" // the secret that the response shows
	if !isRobot(req.Format) {
		newSecret = api.NewWebhookSecret()
	}
	e, err := h.env.Webhooks.AddEndpoint(ctx, webhooks.NewEndpoint{
		CallerID: c.Caller.ID, URL: req.URL, Description: req.Description, Events: req.Events, Format: req.Format, Secret: cmp.Or(newSecret, req.Secret),
	}, c.AsOperator(""))
	return endpointResponseWithSecret(e, newSecret), err
}

type listEndpointsRequest api.EndpointsRequest

func (r *listEndpointsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.PageByID(r.Limit, r.After)
	return bad
}

func (h *handlers) listEndpoints(ctx context.Context, c *fn.Call, req listEndpointsRequest) (any, error) {
	callerID, err := narrowScope(c, (*int64)(req.CallerID), c.ReadScope())
	if err != nil {
		return nil, err
	}
	after, _ := task.ParseID(req.After) // validated; zero if absent
	rows, more, err := h.env.Webhooks.Endpoints(ctx, callerID, after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, shownEndpoint(c), func(e webhooks.Endpoint) task.ID { return e.ID }), err
}

func (h *handlers) getEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.env.Webhooks.Endpoint(ctx, id, c.ReadScope())
	return shownEndpoint(c)(e), err
}

// deleteEndpoint also wakes sweep, which marks as failed the pending deliveries that DeleteEndpoint leaves.
func (h *handlers) deleteEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	if err := h.env.Webhooks.DeleteEndpoint(ctx, id, changeScope(c), c.AsOperator("")); err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(time.Now())
	c.Status(http.StatusNoContent)
	return nil, nil
}

// enableEndpoint also wakes deliver, because pending deliveries to the endpoint may be due.
func (h *handlers) enableEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.env.Webhooks.EnableEndpoint(ctx, id, changeScope(c), c.AsOperator(""))
	if err != nil {
		return nil, err
	}
	h.env.WakeDeliverAt(time.Time{})
	return endpointResponse(e), nil
}

func (h *handlers) disableEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	e, err := h.env.Webhooks.DisableEndpoint(ctx, id, changeScope(c), c.AsOperator(""))
	return endpointResponse(e), err
}

func (h *handlers) rotateEndpointSecret(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	secret := api.NewWebhookSecret()
	e, err := h.env.Webhooks.RotateEndpoint(ctx, id, changeScope(c), secret, c.AsOperator(""))
	return endpointResponseWithSecret(e, secret), err
}

// getSigningSecret returns the caller's signing secret. If the caller has none, getSigningSecret creates it.
func (h *handlers) getSigningSecret(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	s, err := h.env.Webhooks.SigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret())
	return signingSecretResponse(s), err
}

func (h *handlers) rotateSigningSecret(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	s, err := h.env.Webhooks.RotateSigningSecret(ctx, c.Caller.ID, api.NewWebhookSecret(), c.AsOperator(""))
	return signingSecretResponse(s), err
}

func signingSecretResponse(s webhooks.SigningSecret) api.SigningSecretResponse {
	return api.SigningSecretResponse{Secret: s.Secret, OldSecretUntil: fn.UTC(s.OldUntil)}
}

// shownEndpoint returns the function that converts an endpoint for the caller of c. A viewer who is no admin sees only the host of
// other callers' URLs.
func shownEndpoint(c *fn.Call) func(webhooks.Endpoint) api.EndpointResponse {
	return func(e webhooks.Endpoint) api.EndpointResponse {
		if e.CallerID != c.Caller.ID {
			e.URL = c.ShownURL(e.URL)
		}
		return endpointResponse(e)
	}
}

func endpointResponse(e webhooks.Endpoint) api.EndpointResponse {
	return api.EndpointResponse{
		ID: e.ID.String(), CallerID: api.ID(e.CallerID), URL: e.URL, Description: e.Description, Events: append([]string{}, e.Events...), Format: e.Format,
		Enabled: e.Enabled, DisabledReason: e.DisabledReason, DisabledAt: fn.UTC(e.DisabledAt), FailingSince: fn.UTC(e.FailingSince),
		CreatedAt: e.CreatedAt.UTC(), RotatedAt: fn.UTC(e.RotatedAt), OldSecretUntil: fn.UTC(e.OldSecretUntil),
	}
}

// endpointResponseWithSecret is endpointResponse with the secret: for a new endpoint and for a new secret.
func endpointResponseWithSecret(e webhooks.Endpoint, secret string) api.EndpointResponse {
	response := endpointResponse(e)
	response.Secret = secret
	return response
}
