package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	maxDepth  = 20
	tooDeep   = "must not be nested deeper than 20 levels"
	maxFields = 200 // bad fields in one response: a few bytes of a request can cause each

	maxElements = 10_000 // of one list or object
	tooMany     = "must have at most 10000 elements"
)

// Object fills dst, a pointer to a struct, from one JSON object. The error names every bad
// field.
//
// Names are those of the json tags, in exact case; a nested one is written
// items[3].phone_number, and "body" is the whole object. null counts as absent. If dst has
// Validate() []task.Field, its result is added, except for fields that could not be decoded.
//
// A json.RawMessage is checked for text and depth only, and aliases raw, which must not be
// changed afterwards. The elements of a []json.RawMessage are not checked, and null is kept: decode
// each by a call of its own, so that a bad one is refused alone.
func Object(raw []byte, dst any) *task.Error {
	d := decoder{}
	d.body(planOf(reflect.TypeOf(dst).Elem()), raw, dst)
	return d.finish(dst)
}

// Request is the part of an HTTP request that is decoded.
type Request struct {
	Method string
	Query  string // without the question mark
	Body   []byte
}

// Body fills dst from the body, as Object does. The call must have no parameters.
func (p *Plan) Body(r Request, dst any) *task.Error {
	d := decoder{}
	d.query(noParameters, r.Query, &struct{}{})
	d.body(p, r.Body, dst)
	return d.finish(dst)
}

// Parameters fills dst from the query string, then from the body, whose fields replace
// parameters of the same name. GET must have no body. The error is that of Object; a
// repeated parameter is a bad field, too.
func (p *Plan) Parameters(r Request, dst any) *task.Error {
	d := decoder{}
	d.query(p, r.Query, dst)
	switch {
	case len(r.Body) == 0:
	case r.Method == http.MethodGet:
		d.failBody("must be empty on GET")
	default:
		d.body(p, r.Body, dst)
	}
	return d.finish(dst)
}

// decoder checks types and values. body checks the syntax first, so the other methods rely on it.
type decoder struct {
	raw  []byte
	pos  int
	path []step
	bad  []task.Field
}

// step is one level of the path to the current value.
type step struct {
	name  string
	index int // in a list, if name is ""
}

func (d *decoder) body(p *Plan, raw []byte, dst any) {
	if len(raw) == 0 {
		d.failBody("must be a JSON object, it is empty")
		return
	}
	if !json.Valid(raw) {
		d.failBody(syntaxProblem(raw))
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

// syntaxProblem describes where JSON stops being well formed.
func syntaxProblem(raw []byte) string {
	var whole json.RawMessage
	err := json.Unmarshal(raw, &whole)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("is not valid JSON at byte %d: %v", syntax.Offset, syntax)
	}
	return fmt.Sprintf("is not valid JSON: %v", err)
}

// finish adds the bad fields that dst's Validate returns, and returns all of them as an error.
func (d *decoder) finish(dst any) *task.Error {
	unread := slices.ContainsFunc(d.bad, func(f task.Field) bool { return f.Name == "body" || f.Name == "query" })
	if v, ok := dst.(interface{ Validate() []task.Field }); ok && !unread {
		undecoded := d.bad
		for _, f := range v.Validate() {
			if !slices.ContainsFunc(undecoded, func(b task.Field) bool { return overlaps(b.Name, f.Name) }) {
				d.bad = append(d.bad, f)
			}
		}
	}
	return task.Invalid(d.bad)
}

// overlaps reports whether one name equals the other or is nested in it.
func overlaps(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}

func (d *decoder) failBody(message string) { d.note("body", message) }

// fail records that the value at path is bad.
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

// note records a bad field, unless its name has one already.
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

// printable returns a name that the caller wrote, safe for an error message.
func printable(name string) string {
	return text.Cut(text.Printable(name, unicode.ReplacementChar), 64)
}
