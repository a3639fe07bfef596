// Package streamevent converts messages to the CloudEvents that streams store and receivers
// get, and converts the events of accepted messages back to messages.
package streamevent

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// acceptedData is the data of the event of an accepted message: what must be saved, except the id and AcceptedAt, which
// are attributes of the event, and the fingerprint, which is in bus.FingerprintHeader.
type acceptedData struct {
	CallerID         int64           `json:"caller_id"`
	From             string          `json:"from"`
	ClientMsgID      string          `json:"client_msg_id"`
	Kind             message.Kind    `json:"kind"`
	Destination      string          `json:"destination"`
	Exchange         string          `json:"exchange_name,omitempty"`
	RoutingKey       string          `json:"routing_key,omitempty"`
	Type             string          `json:"type"`
	Data             json.RawMessage `json:"data"`
	SentAt           time.Time       `json:"sent_at,omitzero"`
	Confirm          bool            `json:"confirm"`
	MaxSends         int16           `json:"max_sends"`
	ExpectedReceipts int16           `json:"expected_receipts"`
	Producer         string          `json:"producer"`
}

// OfAccepted returns the event by which the stream of accepted messages stores a message.
func OfAccepted(m *messages.Submission) (cloudevents.Event, error) {
	e := cloudevents.NewEvent()
	e.SetID(m.ID.String())
	e.SetSource("/sendonce/messages")
	e.SetType(bus.AcceptedType)
	e.SetSubject(m.From)
	e.SetTime(m.AcceptedAt)
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(acceptedData{
		CallerID: m.CallerID, From: m.From, ClientMsgID: m.ClientMsgID, Kind: m.To.Kind, Destination: m.To.Name,
		Exchange: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data, SentAt: m.SentAt.UTC(),
		Confirm: m.Confirm, MaxSends: m.MaxSends, ExpectedReceipts: m.ExpectedReceipts, Producer: m.Producer,
	})
	return withJSON(e, data.Bytes()), err
}

// FingerprintText returns a fingerprint as the stream of accepted messages has it in bus.FingerprintHeader.
func FingerprintText(fingerprint task.Hash) string { return hex.EncodeToString(fingerprint[:]) }

// Source is the attribute "source" of the events of tasks, acknowledgements, alerts and endpoints. Events of messages
// have other sources.
const Source = "/sendonce"

// Event is an event of a stream as the trigger posts it in a batch: the CloudEvent in JSON, with attributes that the
// trigger adds (acceptseq, fp).
type Event struct {
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject"`
	Sequence    string          `json:"sequence"`
	Time        time.Time       `json:"time"`
	AcceptSeq   string          `json:"acceptseq"` // of an accepted message: its sequence number in the stream of accepted messages
	Fingerprint string          `json:"fp"`        // of an accepted message: see FingerprintText
	Data        json.RawMessage `json:"data"`
	DataBase64  []byte          `json:"data_base64"` // data that is not JSON; then Data is empty
}

// FromCloudEvent converts an event that was posted alone, not in a batch.
func FromCloudEvent(e cloudevents.Event) Event {
	extension := func(name string) string {
		value, _ := e.Extensions()[name].(string)
		return value
	}
	return Event{ID: e.ID(), Type: e.Type(), Subject: e.Subject(), Sequence: extension("sequence"), Time: e.Time(),
		AcceptSeq: extension("acceptseq"), Fingerprint: extension("fp"), Data: e.Data()}
}

// CloudEvent converts an event whose source is Source back to the CloudEvent that was published.
func (e *Event) CloudEvent() cloudevents.Event {
	c := cloudevents.NewEvent()
	c.SetID(e.ID)
	c.SetSource(Source)
	c.SetType(e.Type)
	c.SetSubject(e.Subject)
	c.SetTime(e.Time)
	if e.Sequence != "" {
		c.SetExtension("sequence", e.Sequence)
	}
	return withJSON(c, e.Data)
}

// FromStream converts an event that bus has read from the stream of accepted messages, with its sequence number and
// FingerprintText.
func FromStream(e cloudevents.Event, seq uint64, fingerprint string) Event {
	return Event{ID: e.ID(), Type: e.Type(), Time: e.Time(), AcceptSeq: strconv.FormatUint(seq, 10), Fingerprint: fingerprint, Data: e.Data()}
}

// Message returns the accepted message of the event, with a new CallID. The error says why the event is not that of a
// valid message.
func (e *Event) Message() (*messages.Submission, error) {
	id, err := task.ParseID(e.ID)
	if err != nil || e.Type != bus.AcceptedType {
		return nil, errors.New("not an accepted message")
	}
	seq, err := strconv.ParseUint(e.AcceptSeq, 10, 63)
	if err != nil {
		return nil, errors.New("no sequence number")
	}
	var a acceptedData
	if err := json.Unmarshal(e.Data, &a); err != nil {
		return nil, fmt.Errorf("its data: %w", err)
	}
	m := &messages.Submission{
		ID: id, CallID: task.NewID(), CallerID: a.CallerID, From: a.From, ClientMsgID: a.ClientMsgID,
		To: message.Address{Kind: a.Kind, Name: a.Destination}, Exchange: a.Exchange, RoutingKey: a.RoutingKey, Type: a.Type, Data: a.Data,
		SentAt: a.SentAt, Confirm: a.Confirm, MaxSends: a.MaxSends, ExpectedReceipts: a.ExpectedReceipts,
		AcceptSeq: int64(seq), AcceptedAt: e.Time, Producer: a.Producer,
	}
	if id != task.ID(message.ID(a.CallerID, a.From, a.ClientMsgID)) {
		return nil, errors.New("its id is not that of its caller, sender and client_msg_id")
	}
	fingerprint, err := hex.DecodeString(e.Fingerprint)
	if err != nil || len(fingerprint) != len(m.Fingerprint) {
		return nil, errors.New("no fingerprint")
	}
	copy(m.Fingerprint[:], fingerprint)
	if err := m.To.Check(); err != nil {
		return nil, fmt.Errorf("its destination %w", err)
	}
	if year := m.SentAt.UTC().Year(); year < 1 || year > 9999 {
		return nil, errors.New("its sent_at is not between the years 1 and 9999")
	}
	if m.CallerID < 0 || !task.ValidUser(m.From) || !task.ValidKey(m.ClientMsgID) || !task.ValidKey(m.Type) || len(m.Data) > message.MaxData {
		return nil, errors.New("its caller, sender, client_msg_id, type or data is not valid for a message")
	}
	if m.MaxSends < 1 || m.MaxSends > message.MaxSends || m.ExpectedReceipts < 1 || m.ExpectedReceipts > message.MaxExpectedReceipts || !m.Confirm && m.ExpectedReceipts > 1 {
		return nil, errors.New("its max_sends or expected_receipts is not valid for a message")
	}
	return m, nil
}

// withJSON returns the event with JSON data, without changing a byte; SetData would escape < > and &.
func withJSON(e cloudevents.Event, data []byte) cloudevents.Event {
	e.SetDataContentType(cloudevents.ApplicationJSON)
	e.DataEncoded = data
	return e
}

// OfMessage returns the CloudEvent that a receiver of the message gets. The CloudEvent has the id of the message.
func OfMessage(m messages.Detail) cloudevents.Event {
	e := cloudevents.NewEvent()
	e.SetID(m.ID.String())
	e.SetSource("/sendonce/messages/" + m.From)
	e.SetType(m.Type)
	e.SetTime(m.CreatedAt.UTC())
	return withJSON(e, m.Data)
}

// ConfirmTokenAttribute is the attribute that only the CloudEvent of a message to a URL with confirm: true has.
// The confirmation must contain the value of this attribute.
const ConfirmTokenAttribute = "confirmtoken"

// ConfirmToken returns the value of ConfirmTokenAttribute; "" for nil.
func ConfirmToken(token []byte) string { return base64.RawURLEncoding.EncodeToString(token) }
