package decode

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

const maxFields = 200 // bad fields in one error: each needs only a few bytes of a request, but many of a response

// decoder decodes one request and collects its bad fields. body checks the syntax of JSON before it calls other methods,
// so these rely on valid JSON.
type decoder struct {
	raw  []byte
	pos  int
	path []step
	bad  []task.Field
}

// step is one level of the path to the current value.
type step struct {
	name   string // of a member of an object
	inList bool
	index  int
}

// fail records that the value at path is bad.
func (d *decoder) fail(message string) {
	if len(d.bad) > maxFields {
		return
	}
	var name strings.Builder
	for i, s := range d.path {
		switch {
		case s.inList:
			name.WriteString("[" + strconv.Itoa(s.index) + "]")
		case i > 0:
			name.WriteString("." + printable(s.name))
		default:
			name.WriteString(printable(s.name))
		}
	}
	if name.Len() == 0 {
		name.WriteString("body")
	}
	d.note(name.String(), message)
}

// note records a bad field, unless a bad field with this name is recorded already. After maxFields bad fields it
// records only that there are more.
func (d *decoder) note(name, message string) {
	if slices.ContainsFunc(d.bad, func(f task.Field) bool { return f.Name == name }) {
		return
	}
	switch {
	case len(d.bad) < maxFields:
		d.bad = append(d.bad, task.Field{Name: name, Message: message})
	case len(d.bad) == maxFields:
		d.bad = append(d.bad, task.Field{Name: "body", Message: "has further bad fields"})
	}
}

// failAt records that a member of the value at path is bad.
func (d *decoder) failAt(name, message string) {
	d.path = append(d.path, step{name: name})
	d.fail(message)
	d.path = d.path[:len(d.path)-1]
}

const (
	maxName      = 64          // characters
	maxNameBytes = 4 * maxName // a character has at most four bytes
)

// printable returns a name that the caller wrote, safe for an error message: it is short, and shows no whole phone number.
func printable(name string) string {
	name = name[:min(len(name), maxNameBytes)] // before all other work: a name may be as long as a body
	return cmp.Or(task.MaskNumbers(text.Cut(text.Printable(name, unicode.ReplacementChar), maxName)), `""`)
}
