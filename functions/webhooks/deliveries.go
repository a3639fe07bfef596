package webhooks

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// listDeliveriesRequest adds validation to api.DeliveriesRequest.
type listDeliveriesRequest api.DeliveriesRequest

func (r *listDeliveriesRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.PageByID(r.Limit, r.After)
	_, known := message.ParseDeliveryState(r.State)
	bad.When(r.State != "" && !known, "state", "must be pending, delivered or failed")
	_, err := task.ParseID(r.EndpointID)
	bad.When(r.EndpointID != "" && err != nil, "endpoint_id", "must be the id of an endpoint")
	_, err = task.ParseID(r.TaskID)
	bad.When(r.TaskID != "" && err != nil, "task_id", "must be the id of a task")
	return bad
}

func (h *handlers) listDeliveries(ctx context.Context, c *fn.Call, req listDeliveriesRequest) (any, error) {
	callerID, err := listScope(c, (*int64)(req.CallerID))
	if err != nil {
		return nil, err
	}
	f := webhooks.DeliveryFilter{CallerID: callerID, State: req.State, Limit: decode.PageLimit(req.Limit)}
	f.EndpointID, _ = task.ParseID(req.EndpointID) // validated; zero if absent
	f.After, _ = task.ParseID(req.After)
	if id, err := task.ParseID(req.TaskID); err == nil {
		f.Subject = &id
	}
	rows, more, err := h.webhooks.Deliveries(ctx, f)
	return fn.PageOf(rows, more, deliveryResponse, func(d webhooks.Delivery) task.ID { return d.ID }), err
}

func (h *handlers) getDelivery(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	d, err := h.webhooks.Delivery(ctx, id, callerScope(c))
	return deliveryResponse(d), err
}

func (h *handlers) resendDelivery(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	d, err := h.webhooks.Resend(ctx, id, callerScope(c), c.Operator(""))
	if err != nil {
		return nil, err
	}
	h.env.WakeDeliverAt(time.Time{})
	return deliveryResponse(d), nil
}

func deliveryResponse(d webhooks.Delivery) api.DeliveryResponse {
	tries := make([]api.DeliveryTry, len(d.Tries))
	for i, t := range d.Tries {
		tries[i] = api.DeliveryTry{At: t.At.UTC(), Status: t.Status, DurationMS: t.DurationMS, Error: t.Error, Response: t.Response}
	}
	return api.DeliveryResponse{
		ID: d.ID.String(), EventID: d.EventID, EventType: d.EventType, Subject: d.Subject, EndpointID: d.EndpointID.String(),
		URL: d.URL, State: d.State, Attempts: int(d.Tried), NextAt: fn.UTC(d.NextAt), CreatedAt: d.CreatedAt.UTC(),
		FinishedAt: fn.UTC(d.FinishedAt), Tries: tries, Payload: json.RawMessage(d.Payload),
	}
}
