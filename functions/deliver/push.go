package deliver

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// maxPushAge limits the age of messages that push publishes. The relay may have published an older message so long ago that the
// stream does not detect the duplicate.
const maxPushAge = time.Minute

// pushTimeout limits the publishing of a batch. A message to a subject that has subscribers but no stream uses up this time, since
// nothing acknowledges the message. Meanwhile the next batch waits.
const pushTimeout = 2 * time.Second

// push publishes accepted messages to their receivers, in order, before the messages are saved. After a message is saved, the
// relay publishes it again with the same MsgID, and the stream ignores the repeat. Only the relay publishes
//   - a message whose stream or subject is unavailable, or that the stream refuses;
//   - a message to a nearly full stream, if its caller has pushed more to the stream lately than is free;
//   - messages to URLs.
//
// If the relay holds a pushed message (see Store.Hold) for longer than the stream recognises repeats, its receiver gets it again, with
// the same id. If NATS is unavailable, push returns an error, so that the trigger repeats the batch.
func (d *deliverer) push(ctx context.Context, c *fn.Call, events []streamevent.Event) error {
	var accepted []*messages.Submission
	var toPublish []bus.Message // one for each of accepted
	nearlyFull := d.env.Bus().NearlyFull(ctx)
	for i := range events {
		m, err := events[i].Message()
		if err != nil || m.To.Kind == message.URL || time.Since(m.AcceptedAt) > maxPushAge {
			continue // the function save stores an invalid message as a dead letter
		}
		pushed := d.pushed.add(m.CallerID, m.To.Stream(), len(m.Data)+messages.StreamOverhead)
		if free, isNearlyFull := nearlyFull[m.To.Stream()]; isNearlyFull && pushed > free {
			continue // after it is saved, the relay decides when this caller's messages are published
		}
		accepted, toPublish = append(accepted, m), append(toPublish, firstSend(m))
	}
	started := time.Now()
	var delivered []deliveredMessage
	var unavailable error
	publishCtx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	for i, err := range d.env.Bus().Publish(publishCtx, toPublish) {
		switch {
		case err == nil:
			delivered = append(delivered, deliveredMessage{accepted[i].ID, streamevent.FingerprintText(accepted[i].Fingerprint)})
		case errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrStreamUnavailable) && !errors.Is(err, bus.ErrSubjectUnavailable):
			unavailable = err
		default:
			d.env.Metrics().TwoPhase.DeliverFail.Inc()
		}
	}
	c.Log("delivered", len(delivered), "not_delivered", len(toPublish)-len(delivered))
	d.publishDelivered(ctx, c, started, delivered)
	if unavailable != nil {
		return errors.Join(task.Busy("NATS is unavailable; repeat the same call later"), unavailable)
	}
	return nil
}

// firstSend returns the first send of a message, equal to the one that the relay publishes.
func firstSend(m *messages.Submission) bus.Message {
	subject := m.To.Name
	if m.To.Kind == message.User {
		subject = bus.UserSubject(m.To.Name)
	}
	event := streamevent.OfMessage(messages.Detail{ID: m.ID, From: m.From, Type: m.Type, Data: m.Data, CreatedAt: m.AcceptedAt})
	return bus.Message{Subject: subject, MsgID: message.Message{Epoch: 1}.MsgID(m.ID.String(), m.Fingerprint), Event: event}
}
