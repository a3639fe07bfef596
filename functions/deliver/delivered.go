package deliver

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// deliveredType is the type of an event with the time when push published messages before they were saved. publishDelivered
// publishes the event. When deliver receives the event, recordDelivered records the time in Postgres.
const deliveredType = "sendonce.message.delivered.v1"

type deliveredData struct {
	DeliveredAt time.Time          `json:"delivered_at"` // when publishing began
	Messages    []deliveredMessage `json:"messages"`
}

type deliveredMessage struct {
	ID          task.ID `json:"server_msg_id"`
	Fingerprint string  `json:"fp"`
}

// publishDelivered publishes the time at which the messages were published. If that fails, their delivery time is later: when the
// relay sends them.
func (d *deliverer) publishDelivered(ctx context.Context, c *fn.Call, at time.Time, messages []deliveredMessage) {
	if len(messages) == 0 {
		return
	}
	e := cloudevents.NewEvent()
	e.SetID(task.NewID().String())
	e.SetSource(streamevent.Source)
	e.SetType(deliveredType)
	e.SetTime(at.UTC())
	err := e.SetData(cloudevents.ApplicationJSON, deliveredData{at.UTC(), messages})
	if err == nil {
		err = d.env.Bus().Publish(ctx, []bus.Message{{Subject: bus.EventDelivered, Event: e}})[0]
	}
	if err != nil {
		c.Log("time_not_recorded", err.Error())
	}
}

func (d *deliverer) recordDelivered(ctx context.Context, e cloudevents.Event) error {
	var data deliveredData
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		return fn.Poison(fmt.Errorf("its data: %w", err))
	}
	ids, fingerprints := make([]task.ID, len(data.Messages)), make([]task.Hash, len(data.Messages))
	for i, m := range data.Messages {
		ids[i] = m.ID
		hash, err := hex.DecodeString(m.Fingerprint)
		if err != nil || len(hash) != len(fingerprints[i]) {
			return fn.Poison(fmt.Errorf("%q is not a fingerprint", m.Fingerprint))
		}
		fingerprints[i] = task.Hash(hash)
	}
	err := d.env.Messages.RecordDelivered(ctx, ids, fingerprints, data.DeliveredAt)
	if store.IsPoison(err) {
		return fn.Poison(err)
	}
	return err
}
