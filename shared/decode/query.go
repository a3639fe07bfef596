package decode

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxParameters is more than any route has. Reading thousands of parameters would take long.
const maxParameters = 100

// query fills dst from a query string. Unknown, repeated and badly typed parameters are
// bad fields.
func (d *decoder) query(p *Plan, raw string, dst any) {
	if raw == "" {
		return
	}
	if strings.Count(raw, "&") >= maxParameters {
		d.note("query", fmt.Sprintf("must have at most %d parameters", maxParameters))
		return
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		d.note("query", "is not a well-formed query string: "+err.Error())
		return
	}
	v := reflect.ValueOf(dst).Elem()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		f, known := p.fields[name]
		switch {
		case !known:
			d.failAt(name, "is not a known parameter")
		case len(values[name]) > 1:
			d.failAt(name, "is given more than once")
		default:
			if problem := f.fromText(v.FieldByIndex(f.index), values[name][0]); problem != "" {
				d.failAt(name, problem)
			}
		}
	}
}

// fromText sets v from the text of a parameter, or returns what is wrong with the text; "" = nothing.
func (p *Plan) fromText(v reflect.Value, s string) string {
	switch {
	case !utf8.ValidString(s):
		return badUTF8
	case strings.ContainsRune(s, 0):
		return badText
	}
	switch p.kind {
	case kindPointer:
		v.Set(reflect.New(p.elem.typ))
		return p.elem.fromText(v.Elem(), s)
	case kindString:
		v.SetString(s)
	case kindTime:
		if !setTime(v, s) {
			return p.want
		}
	case kindUnmarshaler: // the type reads the text as a JSON string
		text, err := json.Marshal(s)
		if err == nil {
			err = v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text)
		}
		if err != nil {
			return err.Error()
		}
	case kindBool:
		return setBool(v, s)
	case kindInt:
		if !json.Valid([]byte(s)) { // strconv alone accepts +1 and 007 too
			return p.want
		}
		return p.setInt(v, s)
	default:
		return "cannot be given in the query string"
	}
	return ""
}

// setBool sets v from the text of a parameter, or returns what is wrong with the text.
func setBool(v reflect.Value, s string) string {
	switch s {
	case "true", "1":
		v.SetBool(true)
	case "false", "0":
		v.SetBool(false)
	default:
		return "must be true, false, 1 or 0"
	}
	return ""
}
