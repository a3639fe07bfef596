package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// Object fills dst, a pointer to a struct, from one JSON object. The error names every bad
// field, up to maxFields.
//
// Names are those of the json tags, in exact case. The name of a nested field is written
// items[3].phone_number, and "body" is the whole object. A field that is null counts as absent. If dst
// has Validate() []task.Field, the error also has the fields that Validate returns, except those that could not
// be decoded. If the body itself is bad, Validate is not called.
//
// In a json.RawMessage, Object checks only the strings and the depth. A json.RawMessage aliases raw, which
// must not be changed afterwards. Object does not check the elements of a []json.RawMessage, and keeps an element
// null. Call Object for each element, so that only the bad ones are refused.
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

// Body fills dst from the body, as Object does. Each parameter of the query string is a bad field.
func (p *Plan) Body(r Request, dst any) *task.Error {
	d := decoder{}
	d.query(noParameters, r.Query, &struct{}{})
	d.body(p, r.Body, dst)
	return d.finish(dst)
}

// Parameters fills dst from the query string, and then from the body, if there is one. Fields of the body that are
// not null replace parameters of the same name. GET must have no body. The error is as for Object; a repeated or
// unknown parameter is a bad field, too.
func (p *Plan) Parameters(r Request, dst any) *task.Error {
	d := decoder{}
	d.query(p, r.Query, dst)
	switch {
	case len(r.Body) == 0:
	case r.Method == http.MethodGet:
		d.note("body", "must be empty on GET")
	default:
		d.body(p, r.Body, dst)
	}
	return d.finish(dst)
}

// body checks that raw is a JSON object, and decodes it into dst.
func (d *decoder) body(p *Plan, raw []byte, dst any) {
	if len(raw) == 0 {
		d.note("body", "must be a JSON object, it is empty")
		return
	}
	if !json.Valid(raw) {
		d.note("body", syntaxProblem(raw))
		return
	}
	d.raw, d.pos = raw, 0
	d.space()
	if d.raw[d.pos] != '{' {
		d.note("body", "must be a JSON object")
		return
	}
	d.object(p, reflect.ValueOf(dst).Elem())
}

// syntaxProblem describes where JSON stops being well formed.
func syntaxProblem(raw []byte) string {
	var whole json.RawMessage
	err := json.Unmarshal(raw, &whole)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("is not valid JSON at byte %d: %v", syntax.Offset, syntax)
	}
	return fmt.Sprintf("is not valid JSON: %v", err)
}

// finish adds the bad fields that dst's Validate returns, and returns all bad fields as an error. Validate is not
// called if "body" or "query" is a bad field.
func (d *decoder) finish(dst any) *task.Error {
	incomplete := slices.ContainsFunc(d.bad, func(f task.Field) bool { return f.Name == "body" || f.Name == "query" })
	if v, ok := dst.(interface{ Validate() []task.Field }); ok && !incomplete {
		undecoded := d.bad
		for _, f := range v.Validate() {
			if !slices.ContainsFunc(undecoded, func(b task.Field) bool { return overlaps(b.Name, f.Name) }) {
				d.bad = append(d.bad, f)
			}
		}
	}
	return task.Invalid(d.bad)
}

// overlaps reports whether two names are equal, or one of the fields is nested in the other.
func overlaps(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return strings.HasPrefix(b, a) && (len(a) == len(b) || b[len(a)] == '.' || b[len(a)] == '[')
}
