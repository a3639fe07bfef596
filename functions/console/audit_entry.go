package console

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// maxAuditValue is how many characters of a value the audit log shows.
const maxAuditValue = 500

// difference is a field with its values before and after a change. A value is "" if the field was missing, null or empty, or if the
// object did not exist.
type difference struct {
	Field, Before, After string
}

// differences compares an object before and after a change. It masks phone numbers and hides contents, as the list pages of the console do.
func differences(language string, before, after json.RawMessage) []difference {
	oldFields, newFields := fieldsOf(before), fieldsOf(after)
	all := maps.Clone(oldFields)
	maps.Copy(all, newFields)
	var changed []difference
	for _, field := range slices.Sorted(maps.Keys(all)) {
		d := difference{field, oldFields[field], newFields[field]}
		if d.Before == d.After {
			continue
		}
		switch field {
		case "phone_number":
			d.Before, d.After = task.MaskPhone(d.Before), task.MaskPhone(d.After)
		case "content":
			d.Before, d.After = hiddenValue(language, d.Before), hiddenValue(language, d.After)
		case "result", "last_error", "reason", "source", "description", "url", "event", "pauses": // in other fields, such as quotas, a number is not a phone number
			maskTexts(&d.Before, &d.After)
		}
		d.Before, d.After = text.Cut(d.Before, maxAuditValue), text.Cut(d.After, maxAuditValue)
		changed = append(changed, d)
	}
	return changed
}

// hiddenValue is like hidden, but returns "" for an empty value.
func hiddenValue(language, value string) string {
	if value == "" {
		return ""
	}
	return hidden(language, value)
}

// fieldsOf returns the fields of a JSON object as text; none if object is not a JSON object.
func fieldsOf(object json.RawMessage) map[string]string {
	var values map[string]json.RawMessage
	shown := map[string]string{}
	if json.Unmarshal(object, &values) != nil {
		return shown
	}
	for field, raw := range values {
		var value string
		var list []string
		switch {
		case json.Unmarshal(raw, &list) == nil: // null is an empty list
			value = strings.Join(list, ", ")
		case json.Unmarshal(raw, &value) != nil:
			value = string(raw)
		}
		shown[field] = value
	}
	return shown
}

// subjectPages has, for each kind of object, the address of its page without the id; "default" is a default SMS. Audit entries and
// search results link to these pages.
var subjectPages = map[string]string{
	"template": "/console/templates/", "default": "/console/default-sms/", "caller": "/console/callers/", "queue": "/console/tasks?queue=",
	"webhook": "/console/webhooks/", "delivery": "/console/webhooks/deliveries/", "task": "/console/tasks/", "message": "/console/messages/", "subscribe": "/console/subscribe/", "bulk": "/console/bulk/",
}

// subjectPage returns the page of the subject of an audit entry, or "". A subject is kind/id, or only an id: then the action
// begins with the kind.
func subjectPage(action, subject string) string {
	kind, id, ok := strings.Cut(subject, "/")
	if !ok {
		kind, _, _ = strings.Cut(action, ".")
		id = subject
	}
	if page := subjectPages[kind]; page != "" {
		return page + url.PathEscape(id)
	}
	return ""
}
