package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

const (
	maxElements = 10_000 // of one list or map
	tooMany     = "must have at most 10000 elements"
)

// value decodes the JSON value at pos into v and moves pos behind it.
func (d *decoder) value(p *Plan, v reflect.Value) {
	c := d.raw[d.pos]
	if c == 'n' {
		d.skip() // null is absent
		return
	}
	switch p.kind {
	case kindPointer:
		to := reflect.New(p.elem.typ)
		d.value(p.elem, to.Elem())
		v.Set(to)
	case kindRaw:
		raw := d.skipChecked()
		v.SetBytes(slices.Clip(raw))
	case kindUnmarshaler:
		d.failIf(v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(d.skipChecked()))
	case kindAny:
		if x := d.any(); x != nil {
			v.Set(reflect.ValueOf(x))
		}
	case kindString, kindSome, kindTime, kindRepaired:
		if c != '"' {
			d.wrongType(p)
			return
		}
		d.string(p, v)
	case kindBool:
		if c != 't' && c != 'f' {
			d.wrongType(p)
			return
		}
		v.SetBool(c == 't')
		d.skip()
	case kindInt:
		if c != '-' && (c < '0' || c > '9') {
			d.wrongType(p)
			return
		}
		if problem := p.setInt(v, string(d.skip())); problem != "" {
			d.fail(problem)
		}
	default:
		d.container(p, v, c)
	}
}

func (d *decoder) container(p *Plan, v reflect.Value, c byte) {
	if p.kind == kindSlice && c != '[' || p.kind != kindSlice && c != '{' {
		d.wrongType(p)
		return
	}
	if len(d.path) >= maxDepth {
		d.fail(tooDeep)
		d.skip()
		return
	}
	switch p.kind {
	case kindSlice:
		d.list(p, v)
	case kindMap:
		d.mapping(p, v)
	default:
		d.object(p, v)
	}
}

// wrongType records that the value at pos has another type than p wants, and skips the value.
func (d *decoder) wrongType(p *Plan) {
	d.fail(p.want)
	d.skip()
}

// failIf records the error of a type that decodes itself, if there is one.
func (d *decoder) failIf(err error) {
	if err != nil {
		d.fail(err.Error())
	}
}

func (d *decoder) object(p *Plan, v reflect.Value) {
	var seen uint64
	for d.more() {
		key, problem := d.key()
		f, known := p.fields[string(key)]
		switch {
		case !known || problem != "":
			d.failAt(string(key), "is not a known field")
			d.skip()
		case seen&f.bit != 0:
			d.failAt(f.name, "is given twice")
			d.skip()
		default:
			seen |= f.bit
			d.path = append(d.path, step{name: f.name})
			d.value(f.Plan, v.FieldByIndex(f.index))
			d.path = d.path[:len(d.path)-1]
		}
	}
}

func (d *decoder) list(p *Plan, v reflect.Value) {
	items := reflect.MakeSlice(p.typ, 0, 0)
	for i := 0; d.more(); i++ {
		if d.overLimit(i) {
			d.skip()
			continue
		}
		items = reflect.Append(items, reflect.Zero(p.elem.typ))
		d.path = append(d.path, step{inList: true, index: i})
		switch k := p.elem.kind; {
		case k == kindRaw: // an item of a batch, which is decoded later (see Object)
			raw := d.skip()
			items.Index(i).SetBytes(slices.Clip(raw))
		case d.raw[d.pos] == 'n' && k != kindPointer && k != kindAny:
			d.wrongType(p.elem)
		default:
			d.value(p.elem, items.Index(i))
		}
		d.path = d.path[:len(d.path)-1]
	}
	v.Set(items)
}

// overLimit reports whether element i of a list or map is over the limit, and records the list or map as bad. The
// caller skips such an element, because a decoded element takes many times as much memory as its bytes in the body.
func (d *decoder) overLimit(i int) bool {
	if i == maxElements {
		d.fail(tooMany)
	}
	return i >= maxElements
}

func (d *decoder) mapping(p *Plan, v reflect.Value) {
	m := reflect.MakeMap(p.typ)
	for i := 0; d.more(); i++ {
		raw, problem := d.key()
		if d.overLimit(i) {
			d.skip()
			continue
		}
		key := reflect.ValueOf(string(raw)).Convert(p.typ.Key())
		switch {
		case problem != "":
			d.failAt(string(raw), problem)
			d.skip()
		case m.MapIndex(key).IsValid():
			d.failAt(string(raw), "is given twice")
			d.skip()
		default:
			d.path = append(d.path, step{name: string(raw)})
			item := reflect.New(p.elem.typ).Elem()
			d.value(p.elem, item)
			m.SetMapIndex(key, item)
			d.path = d.path[:len(d.path)-1]
		}
	}
	v.Set(m)
}

// any returns the value at pos as encoding/json decodes the value into an empty interface, with numbers
// as json.Number.
func (d *decoder) any() any {
	switch c := d.raw[d.pos]; c {
	case '"':
		s, problem := d.text()
		if problem != "" {
			d.fail(problem)
		}
		return string(s)
	case 't', 'f':
		d.skip()
		return c == 't'
	case 'n':
		d.skip()
		return nil
	case '{', '[':
		p := planOfAny(c)
		v := reflect.New(p.typ).Elem()
		d.container(p, v, c)
		return v.Interface()
	default:
		return json.Number(d.skip())
	}
}

// planOfAny returns the plan for an object or a list in an empty interface.
func planOfAny(bracket byte) *Plan {
	element := &Plan{kind: kindAny, typ: reflect.TypeFor[any]()}
	if bracket == '{' {
		return &Plan{kind: kindMap, typ: reflect.TypeFor[map[string]any](), elem: element}
	}
	return &Plan{kind: kindSlice, typ: reflect.TypeFor[[]any](), elem: element}
}

// string sets v from the string at pos. v is a string or a time.Time.
func (d *decoder) string(p *Plan, v reflect.Value) {
	start := d.pos
	s, problem := d.text()
	switch {
	case p.kind == kindRepaired && problem != "":
		d.setRepaired(v, d.raw[start:d.pos])
	case problem != "":
		d.fail(problem)
	case p.kind == kindTime:
		if !setTime(v, string(s)) {
			d.fail(p.want)
		}
	case p.kind == kindSome && len(s) == 0:
		d.fail("must not be empty; leave it out for none")
	default:
		v.SetString(string(s))
	}
}

// setRepaired sets v from a JSON string, with U+FFFD for each character that Postgres cannot store.
func (d *decoder) setRepaired(v reflect.Value, quoted []byte) {
	var text string
	d.failIf(json.Unmarshal(quoted, &text))
	v.SetString(strings.ReplaceAll(text, "\x00", "\uFFFD"))
}

// setInt sets v from the text of a JSON number, or returns what is wrong with the text.
func (p *Plan) setInt(v reflect.Value, s string) string {
	n, err := strconv.ParseInt(s, 10, p.typ.Bits())
	switch {
	case err == nil:
		v.SetInt(n)
		return ""
	case errors.Is(err, strconv.ErrRange):
		unused := 64 - p.typ.Bits()
		return fmt.Sprintf("must be an integer between %d and %d", int64(math.MinInt64)>>unused, int64(math.MaxInt64)>>unused)
	}
	return p.want
}
