package bus

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	attributePrefix = "ce-"
	contentType     = "content-type"
	structuredType  = "application/cloudevents"
)

// encodeHeaders returns the event in binary mode: attributes as headers.
func encodeHeaders(e cloudevents.Event) (nats.Header, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	h := nats.Header{}
	set := func(name, value string) {
		if value != "" {
			h.Set(attributePrefix+name, value)
		}
	}
	set("specversion", e.SpecVersion())
	set("id", e.ID())
	set("source", e.Source())
	set("type", e.Type())
	set("subject", e.Subject())
	set("dataschema", e.DataSchema())
	if !e.Time().IsZero() {
		set("time", types.FormatTime(e.Time()))
	}
	for name, value := range e.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", name, err)
		}
		set(name, text)
	}
	if e.DataContentType() != "" {
		h.Set(contentType, e.DataContentType())
	}
	return h, nil
}

// parseEvent returns the event with these attributes and data.
func parseEvent(headers map[string]string, data []byte) (cloudevents.Event, error) {
	e := cloudevents.NewEvent(headers[attributePrefix+"specversion"])
	if e.Context == nil { // unknown spec version
		return e, e.Validate()
	}
	for name, value := range headers {
		switch name {
		case contentType:
			e.SetDataContentType(value)
		case "ce-specversion":
		case "ce-id":
			e.SetID(value)
		case "ce-source":
			e.SetSource(value)
		case "ce-type":
			e.SetType(value)
		case "ce-subject":
			e.SetSubject(value)
		case "ce-dataschema":
			e.SetDataSchema(value)
		case "ce-time":
			at, err := types.ParseTime(value)
			if err != nil {
				return e, err
			}
			e.SetTime(at)
		default:
			e.SetExtension(strings.TrimPrefix(name, attributePrefix), value)
		}
	}
	if len(data) > 0 {
		e.DataEncoded = data
	}
	return e, e.Validate()
}

// attributesOf returns the headers that belong to the event. NATS allows header names and values that
// HTTP does not; those are dropped.
func attributesOf(h nats.Header) map[string]string {
	found := make(map[string]string, len(h)+2) // room for those that the delivery adds
	for name, values := range h {
		name = strings.ToLower(name)
		if len(values) > 0 && (name == contentType || isAttribute(name)) {
			found[name] = strings.Map(printable, values[0])
		}
	}
	return found
}

func isAttribute(header string) bool {
	name, ok := strings.CutPrefix(header, attributePrefix)
	return ok && name != "" && !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return -1
	}
	return r
}

// postedEvent is an event in binary mode, as it is posted to a function.
type postedEvent struct {
	headers   map[string]string
	data      []byte
	misplaced bool // does not belong to its stream: never posted
}

// withAttempt returns the event with its delivery number, from 1.
func (d postedEvent) withAttempt(n uint64) postedEvent {
	headers := maps.Clone(d.headers)
	headers[attributePrefix+"deliveryattempt"] = strconv.FormatUint(n, 10)
	return postedEvent{headers, d.data, d.misplaced}
}

// newPostedEvent returns what is posted for a message: the event in it if it is in binary mode, else a
// tick with time and function. A wake-up always becomes a tick, whatever its headers, since every NATS
// user may publish one.
func newPostedEvent(m jetstream.Msg, meta *jetstream.MsgMetadata, r *Route) postedEvent {
	headers := attributesOf(m.Headers())
	if r.Stream != StreamWake && headers[attributePrefix+"specversion"] != "" {
		// HTTP trims these, so compare the type without them.
		headers[attributePrefix+"type"] = strings.Trim(headers[attributePrefix+"type"], " ")
		foreign := !matchesSubject(m.Subject(), headers)
		// Only the trigger may set where a message was accepted.
		delete(headers, attributePrefix+"acceptseq")
		delete(headers, attributePrefix+"fp")
		if strings.HasPrefix(m.Subject(), acceptPrefix) {
			headers[attributePrefix+"acceptseq"] = strconv.FormatUint(meta.Sequence.Stream, 10)
			headers[attributePrefix+"fp"] = strings.Map(printable, m.Headers().Get(fingerprintHeader))
		}
		return postedEvent{headers, m.Data(), foreign}
	}
	return postedEvent{headers: map[string]string{
		"ce-specversion": cloudevents.VersionV1,
		"ce-id":          deliveryID(meta, r),
		"ce-type":        "sendonce.tick." + r.Function + ".v1",
		"ce-source":      "/sendonce/trigger",
		"ce-time":        meta.Timestamp.UTC().Format(time.RFC3339Nano),
	}}
}

// matchesSubject reports whether an event may be on its subject: an accepted message on acc.>,
// sendonce.<kind>.v1 on evt.<kind>. Structured mode and batches are rejected, because a function would
// read their data and ignore the checked headers.
func matchesSubject(subject string, headers map[string]string) bool {
	eventType := headers[attributePrefix+"type"]
	kind, isEvent := strings.CutPrefix(subject, EventPrefix)
	switch {
	case strings.Contains(strings.ToLower(headers[contentType]), structuredType):
		return false
	case isEvent:
		return strings.HasPrefix(eventType, "sendonce."+kind+".v") && eventType != AcceptedType && eventType != RefusedType
	}
	return eventType == AcceptedType
}

// deliveryID identifies one message for one consumer.
func deliveryID(meta *jetstream.MsgMetadata, r *Route) string {
	return r.Stream + "-" + strconv.FormatUint(meta.Sequence.Stream, 10) + "-" + r.Durable
}
