package trigger

import (
	"maps"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	attributePrefix = "ce-"
	contentType     = "content-type"
	structuredType  = "application/cloudevents"
)

// postedEvent is what is posted to a function: an event in binary mode, or a batch of events (see BatchType).
type postedEvent struct {
	headers   map[string]string
	data      []byte
	misplaced bool // the event is not allowed on its subject (see matchesSubject), so it is not posted
}

// withAttempt returns the event with its delivery number, from 1.
func (e postedEvent) withAttempt(n uint64) postedEvent {
	headers := maps.Clone(e.headers)
	headers[attributePrefix+"deliveryattempt"] = strconv.FormatUint(n, 10)
	return postedEvent{headers, e.data, e.misplaced}
}

// newPostedEvent returns the event in a message. A message without ce-specversion becomes an event of type
// bus.UnreadableType. A wake-up always becomes a tick, whatever its headers, since every NATS user may publish wake-ups.
func newPostedEvent(m jetstream.Msg, meta *jetstream.MsgMetadata, r *Route) postedEvent {
	headers := bus.Attributes(m.Headers())
	if r.Stream != bus.StreamWake && headers[attributePrefix+"specversion"] != "" {
		// HTTP trims spaces around a value, so compare the type without them.
		headers[attributePrefix+"type"] = strings.Trim(headers[attributePrefix+"type"], " ")
		misplaced := !matchesSubject(m.Subject(), headers)
		// Only the trigger may set these attributes of an accepted message.
		delete(headers, attributePrefix+"acceptseq")
		delete(headers, attributePrefix+"fp")
		if strings.HasPrefix(m.Subject(), bus.AcceptPrefix) {
			headers[attributePrefix+"acceptseq"] = strconv.FormatUint(meta.Sequence.Stream, 10)
			headers[attributePrefix+"fp"] = text.Printable(m.Headers().Get(bus.FingerprintHeader), -1) // -1: remove unprintable characters
		}
		return postedEvent{headers, m.Data(), misplaced}
	}
	eventType := bus.UnreadableType
	if r.Stream == bus.StreamWake {
		eventType = "sendonce.tick." + r.Function + ".v1"
	}
	return postedEvent{headers: map[string]string{
		"ce-specversion": cloudevents.VersionV1,
		"ce-id":          messageID(meta, r),
		"ce-type":        eventType,
		"ce-source":      "/sendonce/trigger",
		"ce-time":        meta.Timestamp.UTC().Format(time.RFC3339Nano),
	}}
}

// matchesSubject reports whether an event is allowed on its subject: an accepted message on acc.>, or an event of
// type sendonce.<kind>.v1 (or another version) on evt.<kind>. It rejects structured mode and batches, because a
// function would use the event in the data and ignore the checked headers.
func matchesSubject(subject string, headers map[string]string) bool {
	eventType := headers[attributePrefix+"type"]
	kind, isEvent := strings.CutPrefix(subject, bus.EventPrefix)
	switch {
	case strings.Contains(strings.ToLower(headers[contentType]), structuredType):
		return false
	case isEvent:
		return strings.HasPrefix(eventType, "sendonce."+kind+".v") && eventType != bus.AcceptedType && eventType != RefusedType
	}
	return eventType == bus.AcceptedType
}

// messageID identifies a message of a stream for one consumer. All deliveries of the message have the same id.
func messageID(meta *jetstream.MsgMetadata, r *Route) string {
	return r.Stream + "-" + strconv.FormatUint(meta.Sequence.Stream, 10) + "-" + r.Durable
}

// Refused is an event that its function or the trigger refused, and that DEADLETTERS did not store.
type Refused struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Event    string `json:"event"` // the first 64 KiB of the event's data
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"` // how many times NATS delivered the event
}

// RefusedType is the type of an event whose data is a Refused. If DEADLETTERS does not store a refused event, the
// trigger posts a RefusedType event to the function, which records the refused event as a dead letter.
const RefusedType = "sendonce.event.refused.v1"

// item is a message that was delivered to this trigger and is not settled yet. To settle a message is to acknowledge, return
// (nak) or terminate it.
type item struct {
	msg   jetstream.Msg
	meta  *jetstream.MsgMetadata
	event postedEvent
}
