package webhooks

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/robot"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

type listDeliveriesRequest api.DeliveriesRequest

func (r *listDeliveriesRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.PageByID(r.Limit, r.After)
	_, known := message.ParseDeliveryState(r.State)
	bad.When(r.State != "" && !known, "state", "must be pending, delivered or failed")
	_, err := task.ParseID(r.EndpointID)
	bad.When(r.EndpointID != "" && err != nil, "endpoint_id", "must be the id of an endpoint")
	_, err = task.ParseID(r.TaskID)
	bad.When(r.TaskID != "" && err != nil, "task_id", "must be the id of a task")
	bad.When(r.From != nil && r.To != nil && !r.From.Before(*r.To), "to", "must be later than from")
	return bad
}

func (h *handlers) listDeliveries(ctx context.Context, c *fn.Call, req listDeliveriesRequest) (any, error) {
	callerID, err := narrowScope(c, (*int64)(req.CallerID), c.ReadScope())
	if err != nil {
		return nil, err
	}
	f := webhooks.DeliveryFilter{CallerID: callerID, State: req.State, From: decode.ValueOr(req.From, time.Time{}), To: decode.ValueOr(req.To, time.Time{}), Limit: decode.PageLimit(req.Limit)}
	f.EndpointID, _ = task.ParseID(req.EndpointID) // validated; zero if absent
	f.After, _ = task.ParseID(req.After)
	if id, err := task.ParseID(req.TaskID); err == nil {
		f.Subject = &id
	}
	rows, more, err := h.env.Webhooks.Deliveries(ctx, f)
	return fn.PageOf(rows, more, shownDelivery(c), func(d webhooks.Delivery) task.ID { return d.ID }), err
}

func (h *handlers) getDelivery(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	d, err := h.env.Webhooks.Delivery(ctx, id, c.ReadScope())
	return shownDelivery(c)(d), err
}

func (h *handlers) resendDelivery(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	d, err := h.env.Webhooks.Resend(ctx, id, changeScope(c), c.AsOperator(""))
	if err != nil {
		return nil, err
	}
	h.env.WakeDeliverAt(time.Time{})
	return deliveryResponse(d), nil
}

const (
	maxResent = 500 // deliveries that one call resends, in one transaction
	maxReason = 500 // characters
)

type resendFailedRequest api.DeliveriesResendRequest

func (r *resendFailedRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(r.Since.IsZero(), "since", "is required: deliveries that failed at this time or later are resent")
	bad.Time("since", &r.Since)
	_, err := task.ParseID(r.EndpointID)
	bad.When(r.EndpointID != "" && err != nil, "endpoint_id", "must be the id of an endpoint")
	bad.Between("limit", r.Limit, 1, maxResent)
	bad.AtMost("reason", r.Reason, maxReason)
	return bad
}

func (h *handlers) resendFailed(ctx context.Context, c *fn.Call, req resendFailedRequest) (any, error) {
	callerID, err := narrowScope(c, (*int64)(req.CallerID), changeScope(c))
	if err != nil {
		return nil, err
	}
	f := webhooks.FailedFilter{Since: req.Since, CallerID: callerID}
	f.EndpointID, _ = task.ParseID(req.EndpointID) // validated; zero if absent
	limit := decode.ValueOr(req.Limit, maxResent)
	resent, err := h.env.Webhooks.ResendFailed(ctx, f, limit, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	if resent > 0 {
		h.env.WakeDeliverAt(time.Time{})
	}
	return api.DeliveriesResendResponse{Resent: resent, More: resent == limit}, nil
}

// disabledEvent is the type of the events that contain the URL of an endpoint, which was disabled. No other events contain such a URL.
const disabledEvent = "sendonce." + store.KindWebhookDisabled + ".v1"

// shownDelivery returns the function that converts a delivery for the caller of c. A viewer who is no admin sees only the host of
// URLs, and no responses of receivers.
func shownDelivery(c *fn.Call) func(webhooks.Delivery) api.DeliveryResponse {
	return func(d webhooks.Delivery) api.DeliveryResponse {
		d.URL = c.ShownURL(d.URL)
		if c.SeesOnlyHosts() && d.EventType == disabledEvent {
			d.Payload = string(task.MaskURLFields([]byte(d.Payload)))
		}
		shown := deliveryResponse(d)
		if c.SeesOnlyHosts() {
			for i := range shown.Tries {
				shown.Tries[i].Response = "" // error pages of receivers often contain the path and query of the URL
			}
		}
		return shown
	}
}

func deliveryResponse(d webhooks.Delivery) api.DeliveryResponse {
	tries := make([]api.DeliveryTry, len(d.Tries))
	for i, t := range d.Tries {
		tries[i] = api.DeliveryTry{At: t.At.UTC(), Status: t.Status, DurationMS: t.DurationMS, Error: t.Error, Response: t.Response}
	}
	return api.DeliveryResponse{
		ID: d.ID.String(), EventID: d.EventID, EventType: d.EventType, Subject: d.Subject, EndpointID: d.EndpointID.String(),
		URL: d.URL, State: d.State, Attempts: int(d.Tried), NextAt: fn.UTC(d.NextAt), CreatedAt: d.CreatedAt.UTC(),
		FinishedAt: fn.UTC(d.FinishedAt), Tries: tries, Payload: json.RawMessage(d.Payload), Text: robotText(d),
	}
}

// robotText returns the text that a robot gets about this event if it gets no other event with it. It returns "" if the endpoint is no
// robot, if there is no text for the event, or if d has no payload, as in a list.
func robotText(d webhooks.Delivery) string {
	if !isRobot(d.Format) {
		return ""
	}
	event, _ := robot.Read(d.Payload) // empty after an error
	return robot.Text(event)
}
