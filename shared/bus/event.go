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

// encodeHeaders is the event in binary mode: its attributes as headers, its data as
// the body.
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

// parseEvent is the event whose attributes and data these are.
func parseEvent(headers map[string]string, data []byte) (cloudevents.Event, error) {
	e := cloudevents.NewEvent(headers[attributePrefix+"specversion"])
	if e.Context == nil { // no version that there is
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

// attributesOf gives the headers that are the event's. NATS takes header names and
// values that HTTP does not; those would never arrive, so they are left out.
func attributesOf(h nats.Header) map[string]string {
	found := make(map[string]string, len(h)+2) // the delivery adds some
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

// postedEvent is an event in binary mode, as it goes over HTTP.
type postedEvent struct {
	headers   map[string]string
	data      []byte
	misplaced bool // it does not belong to its stream, and is posted to no function
}

// withAttempt is the event with the number of its delivery, from 1.
func (d postedEvent) withAttempt(n uint64) postedEvent {
	headers := maps.Clone(d.headers)
	headers[attributePrefix+"deliveryattempt"] = strconv.FormatUint(n, 10)
	return postedEvent{headers, d.data, d.misplaced}
}

// newPostedEvent is what is posted for a message: the event that it holds in binary
// mode, or, for anything else, a tick that says when and for whom. A wake-up is
// always a tick, whatever its headers say: every user of NATS may publish one.
func newPostedEvent(m jetstream.Msg, meta *jetstream.MsgMetadata, r *Route) postedEvent {
	headers := attributesOf(m.Headers())
	if r.Stream != StreamWake && headers[attributePrefix+"specversion"] != "" {
		// HTTP removes these blanks, so a type must be compared without them.
		headers[attributePrefix+"type"] = strings.Trim(headers[attributePrefix+"type"], " ")
		foreign := !matchesSubject(m.Subject(), headers)
		// Only the trigger says where a message was accepted.
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

// matchesSubject says whether an event may be at its subject: an accepted message where
// messages are accepted, and sendonce.<kind>.v1 at evt.<kind>. A function would read
// one whose data is in structured mode, or a batch, by that data alone.
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

// deliveryID names one message for one consumer.
func deliveryID(meta *jetstream.MsgMetadata, r *Route) string {
	return r.Stream + "-" + strconv.FormatUint(meta.Sequence.Stream, 10) + "-" + r.Durable
}
