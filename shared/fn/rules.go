package fn

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/task"
)

// Rules collects the bad fields of a request, for its Validate: what the types
// alone cannot express.
type Rules []task.Field

// When notes field as bad where is holds; message says what would be accepted.
func (r *Rules) When(is bool, field, message string) {
	if is {
		*r = append(*r, task.Field{Name: field, Message: message})
	}
}

// AtMost holds a text to a number of characters.
func (r *Rules) AtMost(field, text string, limit int) {
	r.When(utf8.RuneCountInString(text) > limit, field, fmt.Sprintf("must be at most %d characters", limit))
}

// Text asks for 1 to limit characters that are not all white space.
func (r *Rules) Text(field, text string, limit int) {
	r.When(strings.TrimSpace(text) == "" || utf8.RuneCountInString(text) > limit,
		field, fmt.Sprintf("is required: 1 to %d characters, not only white space", limit))
}

// Between holds an optional number to its bounds, both included.
func (r *Rules) Between(field string, n *int, low, high int) {
	r.When(n != nil && (*n < low || *n > high), field, fmt.Sprintf("must be between %d and %d", low, high))
}

// App asks for the name of a sender app (seed 001 section 3.1: 50 characters).
func (r *Rules) App(app string) { r.Text("app_id", app, 50) }

// Phone asks for a phone number; one with a space before it comes from a query
// string whose + was not escaped.
func (r *Rules) Phone(phone string) {
	hint := ""
	if strings.HasPrefix(phone, " ") {
		hint = "; in a query string write + as %2B"
	}
	r.When(!task.ValidPhone(phone), "phone_number", "is required: 3 to 19 digits, optionally after a +"+hint)
}

// Queue holds an optional queue to its alphabet.
func (r *Rules) Queue(field, queue string) {
	r.When(queue != "" && !task.ValidName(queue, task.MaxQueueBytes), field, "must be 1 to 63 characters of A-Z a-z 0-9 . _ -")
}
