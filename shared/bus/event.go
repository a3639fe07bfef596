package bus

import (
	"fmt"
	"strings"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
)

const (
	attributePrefix = "ce-"
	contentType     = "content-type"
)

// encodeHeaders returns the attributes of an event as the headers of a NATS message: the binary mode of CloudEvents.
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

// parseEvent returns the event with these attributes, which come from Attributes, and data.
func parseEvent(attributes map[string]string, data []byte) (cloudevents.Event, error) {
	e := cloudevents.NewEvent(attributes["ce-specversion"])
	if e.Context == nil { // unknown spec version
		return e, e.Validate()
	}
	for name, value := range attributes {
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

// Attributes returns the attributes of an event and its content type as HTTP headers with lower-case names. h are the
// headers of its NATS message. Attributes leaves out all other headers, and control characters in values.
func Attributes(h nats.Header) map[string]string {
	attributes := make(map[string]string, len(h)+2) // + 2: the trigger adds attributes
	dropControls := func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}
	for name, values := range h {
		name = strings.ToLower(name)
		if len(values) > 0 && (name == contentType || isAttribute(name)) {
			attributes[name] = strings.Map(dropControls, values[0])
		}
	}
	return attributes
}

func isAttribute(header string) bool {
	name, ok := strings.CutPrefix(header, attributePrefix)
	return ok && name != "" && !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}
