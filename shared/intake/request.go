package intake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// MaxBody limits the bytes of a request: the data, white space in it, and other fields.
	MaxBody = 2 * message.MaxData

	defaultType = "sendonce.message.v1"
	bestEffort  = "best-effort"
)

// Request adds validation to api.MessageRequest.
type Request api.MessageRequest

// Validate returns every bad field.
func (r *Request) Validate() []task.Field {
	var bad decode.Rules
	bad.User("from", r.From)
	bad.When(!task.ValidKey(r.ClientMsgID), "client_msg_id", "is required: it "+task.KeyRule)
	bad.When(r.Type != "" && !task.ValidKey(r.Type), "type", task.KeyRule)
	bad.When(strings.HasPrefix(r.Type, "sendonce.") && r.Type != defaultType, "type", "must not begin with sendonce.: these types are reserved for the service")
	bad.When(r.Data == nil, "data", "is required: any JSON value but null")
	bad.Time("sent_at", r.SentAt)
	bad.When(r.Ack != "" && r.Ack != api.AckSaved && r.Ack != api.AckAccepted, "ack", "must be saved or accepted")
	bad.Between("max_sends", r.MaxSends, 1, message.MaxSends)
	bad.Between("expected_receipts", r.ExpectedReceipts, 1, message.MaxExpectedReceipts)
	to, problem := r.address()
	if problem != nil {
		return append(bad, *problem)
	}
	bad.When(to.Kind == message.User && r.confirms(to.Kind), "confirm", "must not be true for a user: the message ends in the user's inbox")
	bad.When(!r.confirms(to.Kind) && r.ExpectedReceipts != nil && *r.ExpectedReceipts > 1, "expected_receipts", "must be 1 unless confirm is true")
	return bad
}

// address returns the destination of the message: that of the field to, or of exchange_name and
// routing_key.
func (r *Request) address() (message.Address, *task.Field) {
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

// confirms reports whether receivers must confirm the message by a call. By default they must for
// a subject; a message to a user is done when it is in the inbox, and one to a URL after a 2xx.
func (r *Request) confirms(kind message.Kind) bool {
	if r.Confirm != nil {
		return *r.Confirm
	}
	return kind == message.Subject
}

// message converts a valid request.
func (r *Request) message(caller int64, from string) (*messages.Submission, error) {
	var data bytes.Buffer
	if err := json.Compact(&data, r.Data); err != nil {
		return nil, fmt.Errorf("compact the data: %w", err)
	}
	if data.Len() > message.MaxData {
		return nil, task.Refuse("too_large", fmt.Sprintf("data must have at most %d bytes", message.MaxData))
	}
	fingerprint, err := r.fingerprint()
	if err != nil {
		return nil, err
	}
	to, _ := r.address()
	return &messages.Submission{
		ID: message.ID(caller, from, r.ClientMsgID), CallID: task.NewID(), Fingerprint: fingerprint,
		CallerID: caller, From: from, ClientMsgID: r.ClientMsgID,
		To: to, Exchange: r.ExchangeName, RoutingKey: r.RoutingKey, Type: cmp.Or(r.Type, defaultType), Data: data.Bytes(),
		Confirm: r.confirms(to.Kind), MaxSends: int16(decode.ValueOr(r.MaxSends, message.DefaultSends)),
		ExpectedReceipts: int16(decode.ValueOr(r.ExpectedReceipts, 1)), SentAt: decode.ValueOr(r.SentAt, time.Time{}),
	}, nil
}

// fingerprint covers what is sent and how, without the fields that identify the message, and
// without the kind of acknowledgement, which may differ in a repeat.
func (r *Request) fingerprint() (task.Hash, error) {
	body := *r
	body.From, body.ClientMsgID, body.Ack = "", "", ""
	return task.Fingerprint(&body)
}

// allText returns every string in a JSON value, names of members included, one to a line.
func allText(data []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var lines []string
	for {
		token, err := decoder.Token()
		if err != nil { // the end: the data is well formed
			return strings.Join(lines, "\n")
		}
		if text, ok := token.(string); ok {
			lines = append(lines, text)
		}
	}
}
