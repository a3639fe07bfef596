package fn

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxDepth  = 20
	tooDeep   = "must not be nested deeper than 20 levels"
	maxFields = 200 // bad fields told in one answer; each costs the caller a few bytes and us a line

	maxElements = 10_000 // of one list or object
	tooMany     = "must have at most 10000 elements"
)

// Decode fills dst, a pointer to a struct, from one JSON object and names
// every bad field at once: unknown or given twice, of the wrong type, out of
// range, nested too deep, of too many elements, text that Postgres cannot hold (NUL, half of a
// surrogate pair, broken UTF-8). Names are those of the json tags, in exact
// case; nested ones read items[3].phone_number; "body" is the whole. null
// counts as absent. Where dst has Validate() []task.Field, its verdicts are
// told with the rest, except on what did not decode. What a json.RawMessage
// holds is looked at for its text and depth only; it is a part of raw, which must
// not be changed afterwards. In a list of them nothing is looked at, null is kept, and
// each must be decoded by a call of its own, so that a bad one is refused alone.
//
// Everything that Decode takes, encoding/json takes too, with the same values.
func Decode(raw []byte, dst any) *task.Error {
	d := decoder{}
	d.body(planOf(reflect.TypeOf(dst).Elem()), raw, dst)
	return d.finish(dst)
}

// decoder walks JSON that is known to be well formed, so a step never has to
// doubt the syntax, only the sense.
type decoder struct {
	raw  []byte
	pos  int
	path []step
	bad  []task.Field
}

// step is one level of the path to the value at hand.
type step struct {
	name  string
	index int // in a list, when name is ""
}

func (d *decoder) body(p *plan, raw []byte, dst any) {
	if len(raw) == 0 {
		d.failBody("must be a JSON object, it is empty")
		return
	}
	if !json.Valid(raw) {
		d.failBody(broken(raw))
		return
	}
	d.raw, d.pos = raw, 0
	d.space()
	if d.raw[d.pos] != '{' {
		d.failBody("must be a JSON object")
		return
	}
	d.object(p, reflect.ValueOf(dst).Elem())
}

// broken says where JSON stops being well formed.
func broken(raw []byte) string {
	var whole json.RawMessage
	err := json.Unmarshal(raw, &whole)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("is not valid JSON at byte %d: %v", syntax.Offset, syntax)
	}
	return fmt.Sprintf("is not valid JSON: %v", err)
}

// finish adds what dst's own Validate finds and gives the verdict.
func (d *decoder) finish(dst any) *task.Error {
	whole := slices.ContainsFunc(d.bad, func(f task.Field) bool { return f.Name == "body" || f.Name == "query" })
	if v, ok := dst.(interface{ Validate() []task.Field }); ok && !whole {
		undecoded := d.bad
		for _, f := range v.Validate() {
			if !slices.ContainsFunc(undecoded, func(b task.Field) bool { return overlaps(b.Name, f.Name) }) {
				d.bad = append(d.bad, f)
			}
		}
	}
	return task.Invalid(d.bad)
}

// overlaps says whether one name is the other or lies within it.
func overlaps(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}

func (d *decoder) failBody(message string) { d.note("body", message) }

// fail notes that the value at hand is bad.
func (d *decoder) fail(message string) {
	if len(d.bad) > maxFields {
		return
	}
	var name strings.Builder
	for i, s := range d.path {
		switch {
		case s.name == "":
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

// note keeps the first verdict on each name.
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

// failAt notes that a member of the value at hand is bad.
func (d *decoder) failAt(name, message string) {
	d.path = append(d.path, step{name: name})
	d.fail(message)
	d.path = d.path[:len(d.path)-1]
}
