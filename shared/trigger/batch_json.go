package trigger

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"strconv"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// BatchType is the content type of events that are posted together.
const BatchType = "application/cloudevents-batch+json"

const batchBytes = 1 << 20 // of data in one POST of several events

// fittingInPost returns how many of the first items are posted together. A misplaced event is handled
// alone, since the trigger refuses it without a POST.
func fittingInPost(items []*item) int {
	size := 0
	for i, it := range items {
		size += len(it.event.data)
		if i > 0 && (size > batchBytes || it.event.misplaced || items[0].event.misplaced) {
			return i
		}
	}
	return len(items)
}

// newPostedBatch returns the events in the JSON batch format. tries counts the POSTs of these events since NATS
// delivered them, this POST included.
func newPostedBatch(items []*item, tries uint64) postedEvent {
	body := []byte("[")
	for i, it := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = it.event.appendJSON(body, it.meta.NumDelivered+tries-1)
	}
	return postedEvent{headers: map[string]string{contentType: BatchType}, data: append(body, ']')}
}

// appendJSON appends an event in binary mode as a JSON object with its delivery number. If the data is JSON, it
// is copied unchanged; otherwise it is encoded as base64.
func (e postedEvent) appendJSON(b []byte, attempt uint64) []byte {
	b = append(b, `{"deliveryattempt":"`...)
	b = append(strconv.AppendUint(b, attempt, 10), '"')
	for name, value := range e.headers {
		if name == contentType {
			name = "datacontenttype"
		}
		b = append(b, `,"`...)
		b = append(b, strings.TrimPrefix(name, attributePrefix)...) // letters and digits only: no quoting
		quoted, _ := json.Marshal(value)                            // strings always encode
		b = append(append(b, `":`...), quoted...)
	}
	switch {
	case len(e.data) == 0:
	case isJSON(e.headers[contentType]) && json.Valid(e.data):
		b = append(append(b, `,"data":`...), e.data...)
	default:
		b = append(b, `,"data_base64":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, e.data), '"')
	}
	return append(b, '}')
}

func isJSON(contentType string) bool {
	if contentType == cloudevents.ApplicationJSON {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}
