package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// testEvent is the type of the event that testEndpoint sends.
const testEvent = "sendonce.test.v1"

// testEndpoint records a test event for one endpoint, whatever events the endpoint subscribes to. The event is delivered like every
// other event.
func (h *handlers) testEndpoint(ctx context.Context, c *fn.Call, id task.ID, _ struct{}) (any, error) {
	subject := task.NewID()
	data, err := json.Marshal(api.TestEventData{EndpointID: id.String()})
	if err != nil {
		return nil, err
	}
	event := api.WebhookEvent{
		SpecVersion: "1.0", ID: subject.String() + "-1", Source: streamevent.Source, Type: testEvent, Subject: subject.String(), Time: time.Now().UTC(),
		DataContentType: "application/json", Sequence: fmt.Sprintf("%020d", 1), Data: data,
	}
	payload, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	d, err := h.env.Webhooks.SendTest(ctx, id, changeScope(c), webhooks.RecordedEvent{ID: event.ID, Type: event.Type, Subject: subject, Payload: string(payload)}, c.AsOperator(""))
	if err != nil {
		return nil, err
	}
	h.env.WakeDeliverAt(time.Time{})
	return deliveryResponse(d), nil
}
