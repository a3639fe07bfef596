package deliver

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// recent is what push publishes: anything older may have been sent by the relay
// so long ago that the stream would not recognise it.
const recent = time.Minute

// pushLimit bounds how long a batch waits for one subject that nobody stores: the
// next batch waits meanwhile.
const pushLimit = 2 * time.Second

// push publishes accepted messages to their receivers before they are saved, in
// their order. The relay publishes the same send again once they are, under the
// same MsgID, which the stream recognises within its window; so what cannot be
// published here is nobody's loss. Messages to URLs wait for the save.
func (d *deliverer) push(ctx context.Context, c *fn.Call, events []fn.StreamEvent) error {
	var accepted []*store.NewMessage
	var messages []bus.Message
	for i := range events {
		m, err := events[i].Message()
		if err != nil || m.To.Kind == message.URL || time.Since(m.AcceptedAt) > recent {
			continue // what is none of ours is buried by save
		}
		out, err := firstSend(m)
		if err != nil {
			return err
		}
		accepted, messages = append(accepted, m), append(messages, out)
	}
	tried := time.Now()
	var delivered []deliveredMessage
	var away error
	publishing, cancel := context.WithTimeout(ctx, pushLimit)
	defer cancel()
	for i, err := range d.env.Bus().Publish(publishing, messages) {
		switch {
		case err == nil:
			delivered = append(delivered, deliveredMessage{accepted[i].ID, fn.FingerprintText(accepted[i].Fingerprint)})
		case errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrStreamUnavailable):
			away = err
		default:
			d.env.Metrics().TwoPhase.DeliverFail.Inc()
		}
	}
	c.Log("delivered", len(delivered), "refused", len(messages)-len(delivered))
	d.tellDelivered(ctx, c, tried, delivered)
	if away != nil {
		return errors.Join(&task.Error{Code: task.CodeServerBusy, Message: "the broker is away; repeat the same call later", RetryAfter: time.Second}, away)
	}
	return nil
}

// firstSend is the first send of a message, as the relay makes it.
func firstSend(m *store.NewMessage) (bus.Message, error) {
	subject := m.To.Name
	if m.To.Kind == message.User {
		subject = bus.UserSubject(m.To.Name)
	}
	event, err := fn.MessageEvent(store.MessageDetail{ID: m.ID, From: m.From, Type: m.Type, Data: m.Data, CreatedAt: m.AcceptedAt})
	return bus.Message{Subject: subject, MsgID: message.Message{Epoch: 1}.MsgID(m.ID.String(), m.Fingerprint), Event: event}, err
}
