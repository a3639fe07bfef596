package fn

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"
)

type kind int

const (
	kindString kind = iota
	kindBool
	kindInt
	kindUint
	kindFloat
	kindNumber // json.Number
	kindAny
	kindRepaired    // a string field tagged text:"any"
	kindRaw         // json.RawMessage
	kindUnmarshaler // json.Unmarshaler
	kindText        // encoding.TextUnmarshaler
	kindPointer
	kindSlice
	kindMap
	kindStruct
)

// plan is what decoding must know of a Go type, worked out once.
type plan struct {
	kind   kind
	typ    reflect.Type
	want   string           // what a caller may give, as "must be a string"
	elem   *plan            // of a pointer, slice or map
	fields map[string]field // of a struct, by the names of its json tags
}

type field struct {
	name  string
	bit   uint64 // its own among the struct's fields: 64 at most
	index []int
	*plan
}

// plans remembers the plan of every type decoded so far. It is a memo of facts
// about types, which never change; nothing can be configured through it.
var plans sync.Map // reflect.Type -> *plan

// structPlan is the plan of a request type, which must be a struct.
func structPlan[T any]() *plan { return planOf(reflect.TypeFor[T]()) }

// planOf panics for a type that no request may hold: a mistake that shows at
// the first start.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("fn: cannot decode into %s, a struct is needed", t))
	}
	p := compile(t, map[reflect.Type]*plan{})
	plans.Store(t, p)
	return p
}

// compile works out t; open holds the plans under way, so that a type may
// contain itself.
func compile(t reflect.Type, open map[reflect.Type]*plan) *plan {
	if p := open[t]; p != nil {
		return p
	}
	p := &plan{typ: t}
	open[t] = p
	if p.named() {
		return p
	}
	switch t.Kind() {
	case reflect.String:
		p.kind, p.want = kindString, "must be a string"
	case reflect.Bool:
		p.kind, p.want = kindBool, "must be true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.kind, p.want = kindInt, "must be an integer"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.kind, p.want = kindUint, "must be an integer that is not negative"
	case reflect.Float32, reflect.Float64:
		p.kind, p.want = kindFloat, "must be a number"
	case reflect.Interface:
		p.kind, p.want = kindAny, "must be a JSON value"
	case reflect.Pointer:
		p.elem = compile(t.Elem(), open)
		p.kind, p.want = kindPointer, p.elem.want
	case reflect.Slice:
		p.elem = compile(t.Elem(), open)
		p.kind, p.want = kindSlice, "must be a list"
	case reflect.Map:
		p.elem = compile(t.Elem(), open)
		p.kind, p.want = kindMap, "must be an object"
	case reflect.Struct:
		p.kind, p.want = kindStruct, "must be an object"
		p.fields = map[string]field{}
		p.addFields(t, nil, open)
	}
	if p.want == "" && p.kind != kindPointer || t.Kind() == reflect.Interface && t.NumMethod() > 0 || t.Kind() == reflect.Map && t.Key().Kind() != reflect.String {
		panic(fmt.Sprintf("fn: a request cannot hold a %s", t))
	}
	return p
}

// named plans the types that know how to decode themselves.
func (p *plan) named() bool {
	pointer := reflect.PointerTo(p.typ)
	switch {
	case p.typ == reflect.TypeFor[json.RawMessage]():
		p.kind, p.want = kindRaw, "must be a JSON value"
	case p.typ == reflect.TypeFor[json.Number]():
		p.kind, p.want = kindNumber, "must be a number"
	case p.typ == reflect.TypeFor[time.Time]():
		p.kind, p.want = kindText, "must be an RFC 3339 time such as 2023-12-01T10:00:00Z"
	case pointer.Implements(reflect.TypeFor[json.Unmarshaler]()):
		p.kind = kindUnmarshaler
	case pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		p.kind, p.want = kindText, "must be a string"
	default:
		return false
	}
	return true
}

func (p *plan) addFields(t reflect.Type, prefix []int, open map[reflect.Type]*plan) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(prefix[:len(prefix):len(prefix)], i)
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			p.addFields(f.Type, index, open)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		if _, twice := p.fields[name]; twice || len(p.fields) == 64 || strings.Contains(options, "string") {
			panic(fmt.Sprintf("fn: %s.%s: a name twice, the option string, or more than 64 fields", p.typ, f.Name))
		}
		member := compile(f.Type, open)
		if f.Tag.Get("text") == "any" {
			member = &plan{kind: kindRepaired, typ: f.Type, want: member.want}
		}
		p.fields[name] = field{name: name, bit: 1 << len(p.fields), index: index, plan: member}
	}
}
