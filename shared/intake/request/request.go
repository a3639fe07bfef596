// Package request has the rules for the body of POST /api/v1/messages. Sendonce applies them to each request. Package
// outbox, which runs in other services, applies them before it stores a message.
package request

import (
	"errors"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

// DefaultType is the type of a message without one.
const DefaultType = "sendonce.message.v1"

// Message adds validation to api.MessageRequest.
type Message api.MessageRequest

// Validate returns every bad field.
func (r *Message) Validate() []task.Field {
	var bad decode.BadFields
	bad.User("from", r.From)
	bad.When(!task.ValidKey(r.ClientMsgID), "client_msg_id", "is required: it "+task.KeyRule)
	bad.When(r.Type != "" && !task.ValidKey(r.Type), "type", task.KeyRule)
	bad.When(strings.HasPrefix(r.Type, "sendonce.") && r.Type != DefaultType, "type", "must not begin with sendonce.: these types are reserved for the service")
	bad.When(r.Data == nil, "data", "is required: any JSON value but null")
	bad.Numbers("data", r.Data, message.MaxNumberChars)
	bad.Time("sent_at", r.SentAt)
	bad.When(r.Ack != "" && r.Ack != api.AckSaved && r.Ack != api.AckAccepted, "ack", "must be saved or accepted")
	bad.Between("max_sends", r.MaxSends, 1, message.MaxSends)
	bad.Between("expected_receipts", r.ExpectedReceipts, 1, message.MaxExpectedReceipts)
	to, problem := r.Address()
	if problem != nil {
		return append(bad, *problem)
	}
	bad.When(to.Kind == message.User && r.NeedsConfirmation(to.Kind), "confirm", "must not be true for a user: the message is final when it is in the user's inbox")
	bad.When(!r.NeedsConfirmation(to.Kind) && r.ExpectedReceipts != nil && *r.ExpectedReceipts > 1, "expected_receipts", "must be 1 unless confirm is true")
	return bad
}

// Address returns the destination of the message, from the field to or from exchange_name and routing_key.
func (r *Message) Address() (message.Address, *task.Field) {
	var to message.Address
	var err error
	field := "to"
	switch {
	case r.To != "" && r.RoutingKey != "":
		err = errors.New("must not be given together with routing_key")
	case r.To != "" && r.ExchangeName != "":
		err = errors.New("must not be given together with exchange_name")
	case r.To != "":
		to, err = message.ParseAddress(r.To)
	case r.RoutingKey != "":
		field = "routing_key"
		to, err = message.SubjectOf(r.ExchangeName, r.RoutingKey)
	default:
		err = errors.New("is required, or a routing_key in its place: a subject such as orders.paid, an https URL, or user:<name>")
	}
	if err != nil {
		return to, &task.Field{Name: field, Message: err.Error()}
	}
	return to, nil
}

// NeedsConfirmation reports whether receivers must confirm the message by a call: as the field confirm says, and
// without this field only for a subject. Without a confirmation, the message is final when it is in the stream of the
// subject or of the user's inbox, or after a 2xx of the URL.
func (r *Message) NeedsConfirmation(kind message.Kind) bool {
	if r.Confirm != nil {
		return *r.Confirm
	}
	return kind == message.Subject
}
