package relay

import (
	"errors"
	"fmt"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// errBadDestination means that a compromised function wrote the row, because a submission with such a destination is refused.
var errBadDestination = errors.New("invalid destination")

// errEndpointChanged means that an endpoint was disabled, and was then deleted or enabled again before the
// event about it was published. The reason is no longer stored, so there is nothing to publish.
var errEndpointChanged = errors.New("the endpoint was deleted or enabled again")

// errAlertMissing means that another program wrote the event: an alert is deleted only after its events are
// published.
var errAlertMissing = errors.New("the alert does not exist")

// messageEvent returns a reliable message as a CloudEvent with the id of the message.
func messageEvent(d messages.Due) (bus.Message, error) {
	to := d.To()
	if err := to.Check(); err != nil {
		return bus.Message{}, fmt.Errorf("%w: %w", errBadDestination, err)
	}
	if to.Kind == message.URL {
		return bus.Message{}, fmt.Errorf("%w: relay does not send messages to URLs", errBadDestination)
	}
	subject := d.Destination
	if d.Kind == message.User {
		subject = bus.UserSubject(d.Destination)
	}
	return bus.Message{Subject: subject, MsgID: d.MsgID, Event: streamevent.OfMessage(d.Detail)}, nil
}

// outboxEvent returns an event of a task, a message, an alert or an endpoint as a CloudEvent. The
// extension sequence has leading zeros, so that sequences sort as texts.
func outboxEvent(d events.Due) (bus.Message, error) {
	if d.Kind == store.KindWebhookDisabled && d.DisabledReason == "" {
		return bus.Message{}, errEndpointChanged
	}
	if strings.HasPrefix(d.Kind, "alert.") && d.Alert == nil {
		return bus.Message{}, errAlertMissing
	}
	e := cloudevents.NewEvent()
	e.SetID(d.ID())
	e.SetSource(streamevent.Source)
	e.SetSubject(d.Subject.String())
	e.SetTime(d.At.UTC())
	e.SetExtension("sequence", fmt.Sprintf("%020d", d.Seq))
	eventType, subject := "sendonce."+d.Kind+".v1", bus.EventPrefix+d.Kind
	// message.saved and message.rejected are late acknowledgements, for the inbox of the sender.
	if ack, isAck := strings.CutPrefix(d.Kind, "message."); isAck {
		eventType, subject = "sendonce.ack."+ack+".v1", bus.UserSubject(d.From)
	}
	e.SetType(eventType)
	return bus.Message{Subject: subject, MsgID: d.ID(), Event: e}, e.SetData(cloudevents.ApplicationJSON, eventData(d))
}

func eventData(d events.Due) any {
	if ack, isAck := strings.CutPrefix(d.Kind, "message."); isAck {
		return api.LateAck{
			AckType: ack, From: d.From, ClientMsgID: d.ClientMsgID, ServerMsgID: d.Subject.String(), AcceptSeq: d.AcceptSeq, SavedAt: d.At.UTC(),
		}
	}
	if d.Alert != nil {
		return api.AlertEventData{
			AlertID: d.Subject.String(), Kind: string(d.Alert.Kind), Queue: d.Alert.Queue, Value: d.Alert.Value,
			Threshold: d.Alert.Threshold, Since: d.Alert.Since.UTC(), ClearedAt: fn.UTC(d.Alert.ClearedAt),
		}
	}
	name, isTask := strings.CutPrefix(d.Kind, "task.")
	if !isTask {
		return api.EndpointEventData{
			EndpointID: d.Subject.String(), URL: d.URL, Reason: d.DisabledReason, FailingSince: fn.UTC(d.FailingSince),
		}
	}
	state, _ := task.ParseState(name)
	return api.TaskEventData{
		TaskID: d.Subject.String(), State: name, Status: state.Status(), Reason: d.Reason.String(),
		Result: d.Result, ErrorCode: d.ErrorCode, Source: d.Source, Metadata: d.Metadata, SentAt: fn.Instant(d.SentAt),
	}
}
