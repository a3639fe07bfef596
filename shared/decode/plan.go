package decode

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
	kindAny
	kindRepaired    // a string field tagged text:"any"
	kindSome        // a string field tagged text:"some": absent or not empty
	kindRaw         // json.RawMessage
	kindUnmarshaler // json.Unmarshaler
	kindTime        // time.Time
	kindPointer
	kindSlice
	kindMap
	kindStruct
)

// Plan is how to decode one Go type, computed once.
type Plan struct {
	kind   kind
	typ    reflect.Type
	want   string           // what is accepted, as "must be a string"
	elem   *Plan            // of a pointer, slice or map
	fields map[string]field // of a struct, by the names of its json tags
}

type field struct {
	name  string
	bit   uint64 // a different one for each field of the struct: at most 64 fields
	index []int
	*Plan
}

// plans caches the plan of each type.
var plans sync.Map // reflect.Type -> *Plan

var noParameters = PlanOf[struct{}]()

// PlanOf returns the plan of a request type. It panics if the type cannot be decoded, so that the
// mistake is found at the first start.
func PlanOf[T any]() *Plan { return planOf(reflect.TypeFor[T]()) }

func planOf(t reflect.Type) *Plan {
	if p, ok := plans.Load(t); ok {
		return p.(*Plan)
	}
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("decode: cannot decode into %s, a struct is needed", t))
	}
	p := compile(t, map[reflect.Type]*Plan{})
	plans.Store(t, p)
	return p
}

// compile makes the plan of t. begun has all plans that were begun for the same request type, because a
// type may contain itself.
func compile(t reflect.Type, begun map[reflect.Type]*Plan) *Plan {
	if p := begun[t]; p != nil {
		return p
	}
	p := &Plan{typ: t}
	begun[t] = p
	if p.special() {
		return p
	}
	switch t.Kind() {
	case reflect.String:
		p.kind, p.want = kindString, "must be a string"
	case reflect.Bool:
		p.kind, p.want = kindBool, "must be true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.kind, p.want = kindInt, "must be an integer"
	case reflect.Interface:
		p.kind, p.want = kindAny, "must be a JSON value"
	case reflect.Pointer:
		p.elem = compile(t.Elem(), begun)
		p.kind, p.want = kindPointer, p.elem.want
	case reflect.Slice:
		p.elem = compile(t.Elem(), begun)
		p.kind, p.want = kindSlice, "must be a list"
	case reflect.Map:
		p.elem = compile(t.Elem(), begun)
		p.kind, p.want = kindMap, "must be an object"
	case reflect.Struct:
		p.kind, p.want = kindStruct, "must be an object"
		p.fields = map[string]field{}
		p.addFields(t, nil, begun)
	}
	if p.want == "" && p.kind != kindPointer || t.Kind() == reflect.Interface && t.NumMethod() > 0 || t.Kind() == reflect.Map && t.Key().Kind() != reflect.String {
		panic(fmt.Sprintf("decode: a request cannot hold a %s", t))
	}
	return p
}

// special fills in the plan of a type that is not decoded by its reflect.Kind, and returns false for
// other types.
func (p *Plan) special() bool {
	pointer := reflect.PointerTo(p.typ)
	switch {
	case p.typ == reflect.TypeFor[json.RawMessage]():
		p.kind, p.want = kindRaw, "must be a JSON value"
	case p.typ == reflect.TypeFor[time.Time]():
		p.kind, p.want = kindTime, badTime
	case pointer.Implements(reflect.TypeFor[json.Unmarshaler]()):
		p.kind = kindUnmarshaler
	case p.typ == reflect.TypeFor[json.Number](), pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		panic(fmt.Sprintf("decode: a request cannot hold a %s", p.typ))
	default:
		return false
	}
	return true
}

func (p *Plan) addFields(t reflect.Type, prefix []int, begun map[reflect.Type]*Plan) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(prefix[:len(prefix):len(prefix)], i)
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			p.addFields(f.Type, index, begun)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		if _, twice := p.fields[name]; twice || len(p.fields) == 64 || strings.Contains(options, "string") {
			panic(fmt.Sprintf("decode: %s.%s: a name twice, the option string, or more than 64 fields", p.typ, f.Name))
		}
		member := compile(f.Type, begun)
		switch f.Tag.Get("text") {
		case "any":
			member = &Plan{kind: kindRepaired, typ: f.Type, want: member.want}
		case "some":
			member = &Plan{kind: kindSome, typ: f.Type, want: member.want}
		}
		p.fields[name] = field{name: name, bit: 1 << len(p.fields), index: index, Plan: member}
	}
}
