package streamevent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// acceptedEvent returns an accepted message, and its event with the attributes that the trigger adds.
func acceptedEvent(t *testing.T) (*messages.Submission, cloudevents.Event) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	m := &messages.Submission{
		CallerID: 7, From: "shop", ClientMsgID: "k", To: message.Address{Kind: message.User, Name: "bob"}, Exchange: "orders", RoutingKey: "paid",
		Type: "order.paid.v1", Data: []byte(`{"a":"<é>","b":1e400}`), SentAt: at.Add(-time.Hour), Confirm: true, MaxSends: 3, ExpectedReceipts: 2,
		AcceptSeq: 1 << 53, AcceptedAt: at, Producer: "host",
	}
	m.ID = task.ID(message.ID(m.CallerID, m.From, m.ClientMsgID))
	m.Fingerprint, _ = task.Fingerprint("x")
	e, err := OfAccepted(m)
	require.NoError(t, err)
	e.SetExtension("acceptseq", "9007199254740992")
	e.SetExtension("fp", FingerprintText(m.Fingerprint))
	return m, e
}

func TestAcceptedMessageRoundTrip(t *testing.T) {
	t.Parallel()
	want, e := acceptedEvent(t)
	body, err := e.MarshalJSON()
	require.NoError(t, err)
	var posted Event
	require.NoError(t, json.Unmarshal(body, &posted))
	alone, stored := FromCloudEvent(e), FromStream(e, 1<<53, FingerprintText(want.Fingerprint))
	for name, read := range map[string]func() (*messages.Submission, error){
		"in a batch":           posted.Message,
		"alone":                alone.Message,
		"read from the stream": stored.Message,
	} {
		got, err := read()
		require.NoError(t, err, name)
		require.NotZero(t, got.CallID)
		got.CallID = task.ID{}
		require.Equal(t, want, got, name)
	}
}

func TestInvalidAcceptedMessagesAreReported(t *testing.T) {
	t.Parallel()
	for reason, change := range map[string]func(*cloudevents.Event){
		"not an accepted message":          func(e *cloudevents.Event) { e.SetType("sendonce.tick.save.v1") },
		"no sequence number":               func(e *cloudevents.Event) { e.SetExtension("acceptseq", "-1") },
		"its data: unexpected end":         func(e *cloudevents.Event) { require.NoError(t, e.SetData("text/plain", []byte("\xff"))) },
		"its data: json: cannot unmarshal": func(e *cloudevents.Event) { e.DataEncoded = []byte(`{"kind":"x"}`) },
		"its id is not that of its caller": func(e *cloudevents.Event) {
			e.DataEncoded = []byte(strings.Replace(string(e.Data()), "shop", "other", 1))
		},
		"no fingerprint": func(e *cloudevents.Event) { e.SetExtension("fp", "00") },
	} {
		_, e := acceptedEvent(t)
		change(&e)
		body, err := json.Marshal(e)
		require.NoError(t, err)
		var posted Event
		require.NoError(t, json.Unmarshal(body, &posted))
		_, err = posted.Message()
		require.ErrorContains(t, err, reason)
	}
}

func TestForgedAcceptedMessageIsRejected(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *messages.Submission, e *cloudevents.Event){
		"a fingerprint that is too long":      func(_ *messages.Submission, e *cloudevents.Event) { e.SetExtension("fp", strings.Repeat("00", 40)) },
		"a sender longer than a control line": func(m *messages.Submission, _ *cloudevents.Event) { m.From = strings.Repeat("x", 5000) },
		"a subject of events":                 func(m *messages.Submission, _ *cloudevents.Event) { m.To = message.Address{Name: "evt.task.succeeded"} },
		"an inbox by its subject":             func(m *messages.Submission, _ *cloudevents.Event) { m.To = message.Address{Name: "inbox.bob"} },
		"an invalid user name":                func(m *messages.Submission, _ *cloudevents.Event) { m.To.Name = "b*b" },
		"an unknown kind":                     func(m *messages.Submission, _ *cloudevents.Event) { m.To.Kind = 7 },
		"the caller id of the service itself": func(m *messages.Submission, _ *cloudevents.Event) { m.CallerID = -1 },
		"too many sends":                      func(m *messages.Submission, _ *cloudevents.Event) { m.MaxSends = 21 },
		"no receipts":                         func(m *messages.Submission, _ *cloudevents.Event) { m.ExpectedReceipts = 0 },
		"receipts without confirmations":      func(m *messages.Submission, _ *cloudevents.Event) { m.Confirm, m.ExpectedReceipts = false, 2 },
		"data that is too long": func(m *messages.Submission, _ *cloudevents.Event) {
			m.Data = []byte(`"` + strings.Repeat("x", message.MaxData) + `"`)
		},
	} {
		m, original := acceptedEvent(t)
		change(m, &original)
		m.ID = task.ID(message.ID(m.CallerID, m.From, m.ClientMsgID))
		e, err := OfAccepted(m)
		require.NoError(t, err)
		e.SetExtension("acceptseq", "5")
		e.SetExtension("fp", original.Extensions()["fp"])
		forged := FromCloudEvent(e)
		_, err = forged.Message()
		require.Error(t, err, name)
	}
}
