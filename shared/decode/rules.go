package decode

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/outgoing"
	"github.com/sendonce/sendonce/shared/task"
)

// BadFields collects the bad fields of a request, for its Validate method.
type BadFields []task.Field

// When adds a bad field if bad is true. message says what is accepted.
func (r *BadFields) When(bad bool, field, message string) {
	if bad {
		*r = append(*r, task.Field{Name: field, Message: message})
	}
}

func (r *BadFields) addf(field, format string, args ...any) {
	*r = append(*r, task.Field{Name: field, Message: fmt.Sprintf(format, args...)})
}

// AtMost limits the number of characters of a text.
func (r *BadFields) AtMost(field, text string, limit int) {
	if utf8.RuneCountInString(text) > limit {
		r.addf(field, "must be at most %d characters", limit)
	}
}

// Text requires 1 to limit characters that are not all white space.
func (r *BadFields) Text(field, text string, limit int) {
	if strings.TrimSpace(text) == "" || utf8.RuneCountInString(text) > limit {
		r.addf(field, "is required: 1 to %d characters, not only white space", limit)
	}
}

// Between limits an optional number, both bounds included.
func (r *BadFields) Between(field string, n *int, low, high int) {
	if n != nil && (*n < low || *n > high) {
		r.addf(field, "must be between %d and %d", low, high)
	}
}

// User checks an optional name of a user.
func (r *BadFields) User(field, name string) {
	r.When(name != "" && !task.ValidUser(name), field, task.UserRule)
}

// App requires the name of a sender app. The original SMS API limits it to 50 characters.
func (r *BadFields) App(app string) { r.Text("app_id", app, 50) }

// MaxTaskDelay limits how far in the future a task may be scheduled, and the TTL of a task. A pause of a queue uses it
// too.
const MaxTaskDelay = 366 * 24 * time.Hour

// Time limits an optional time to what the constraints of the columns send_at and sent_at allow.
func (r *BadFields) Time(field string, t *time.Time) {
	r.When(t != nil && (t.UTC().Year() < 1 || t.UTC().Year() > 9999), field, "must be between the years 1 and 9999")
}

// TTL limits the optional number of seconds that a task may wait to be sent once it is due.
func (r *BadFields) TTL(field string, seconds *int64) {
	r.When(seconds != nil && (*seconds < 1 || *seconds > int64(MaxTaskDelay/time.Second)), field, "must be between 1 and 31622400")
}

// URLRule describes the URLs that the service may call.
const URLRule = "an https or http URL without user name, fragment and blanks, with a port from 1 to 65535 if any, at most 2000 bytes"

// ValidURL reports whether a URL has the form of URLRule.
func ValidURL(text string) bool {
	to, err := message.ParseAddress(text)
	return err == nil && to.Kind == message.URL
}

// Callback checks an optional URL for the events of one task. The rule is the same as for the URL of an endpoint.
func (r *BadFields) Callback(field, callback string) {
	r.When(callback != "" && !ValidURL(callback), field, "must be "+URLRule)
}

// AllowedHost refuses an optional URL whose host is an address that the service may not call. It resolves no names. Do
// not apply it to repeats of a request: the operator may have changed the allowed networks.
func (r *BadFields) AllowedHost(field, url string, allowed config.Networks) {
	r.When(url != "" && !outgoing.PermitsURL(url, allowed), field, "must not have a private or other non-public address as its host; an operator can allow networks with SENDONCE_OUTGOING_NETWORKS")
}

// OnUnknown checks an optional policy for tasks whose outcome is not known.
func (r *BadFields) OnUnknown(field, policy string) {
	_, known := task.ParsePolicy(policy)
	r.When(policy != "" && !known, field, "must be resend, hold or fail")
}

// SMSQueue is Queue, but also refuses the queues of subscribe messages. instead says what to use for such messages.
func (r *BadFields) SMSQueue(field, queue, instead string) {
	r.Queue(field, queue)
	r.When(task.IsSubscribeQueue(queue), field, "is for subscribe messages: "+instead)
}

// Phone requires a phone number.
func (r *BadFields) Phone(phone string) {
	_, problem := task.Country("").Phone(phone)
	r.When(problem != "", "phone_number", problem)
}

// PhoneParameter checks an optional phone number of a query string. A number that begins with a
// space was written with an unescaped +.
func (r *BadFields) PhoneParameter(phone string) {
	switch {
	case strings.HasPrefix(phone, " "):
		r.When(true, "phone_number", "begins with a space; in a query string write + as %2B")
	case phone != "":
		r.Phone(phone)
	}
}

// Queue checks the name of an optional queue.
func (r *BadFields) Queue(field, queue string) {
	r.When(queue != "" && !task.ValidQueue(queue), field, task.QueueRule)
}

// Lease limits the optional number of seconds that the lease of a claim lasts.
func (r *BadFields) Lease(seconds *int) { r.Between("lease_seconds", seconds, 10, 3600) }
