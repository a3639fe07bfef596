package decode

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	badText = "must not contain NUL or unpaired surrogates"
	badUTF8 = "must be valid UTF-8"
	badTime = "must be an RFC 3339 time such as 2023-12-01T10:00:00Z"
)

const (
	maxDepth = 20
	tooDeep  = "must not be nested deeper than 20 levels"
)

func (d *decoder) space() {
	for d.pos < len(d.raw) {
		switch d.raw[d.pos] {
		case ' ', '\t', '\r', '\n':
			d.pos++
		default:
			return
		}
	}
}

// more moves from an opening bracket, or from the end of an element, to the next element: an item of a list, or a name
// of an object. If there is no further element, more moves behind the closing bracket and returns false.
func (d *decoder) more() bool {
	d.space()
	c := d.raw[d.pos]
	d.pos++
	if c == '}' || c == ']' {
		return false
	}
	d.space()
	if c = d.raw[d.pos]; c == '}' || c == ']' {
		d.pos++
		return false
	}
	return true
}

// key reads a member's name and moves to its value.
func (d *decoder) key() (name []byte, problem string) {
	name, problem = d.text()
	d.space()
	d.pos++ // the colon
	d.space()
	return name, problem
}

// text reads the string at pos. The result may alias the input.
func (d *decoder) text() (s []byte, problem string) {
	d.pos++
	start, plain := d.pos, true
	for d.raw[d.pos] != '"' {
		switch c := d.raw[d.pos]; {
		case c == '\\':
			plain = false
			d.pos++ // the escaped character may be a quote
		case c >= utf8.RuneSelf:
			plain = false
		}
		d.pos++
	}
	s = d.raw[start:d.pos]
	d.pos++
	if plain {
		return s, ""
	}
	return unquote(s)
}

// unquote resolves the escapes of a well-formed JSON string. For NUL, half of a surrogate pair or invalid UTF-8 it
// returns a problem, because Postgres could not store exactly the text that was sent.
func unquote(s []byte) (text []byte, problem string) {
	if !utf8.Valid(s) {
		return bytes.ToValidUTF8(s, []byte("\uFFFD")), badUTF8
	}
	text = make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			text = append(text, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'b':
			text = append(text, '\b')
		case 'f':
			text = append(text, '\f')
		case 'n':
			text = append(text, '\n')
		case 'r':
			text = append(text, '\r')
		case 't':
			text = append(text, '\t')
		case 'u':
			r := hex4(s[i+1:])
			i += 4
			if utf16.IsSurrogate(r) && i+6 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				if pair := utf16.DecodeRune(r, hex4(s[i+3:])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			if r == 0 || utf16.IsSurrogate(r) {
				problem = badText
			}
			text = utf8.AppendRune(text, r)
		default: // a quote, a slash or a backslash
			text = append(text, s[i])
		}
	}
	return text, problem
}

// hex4 reads four hexadecimal digits.
func hex4(s []byte) (r rune) {
	for _, c := range s[:4] {
		if c <= '9' {
			r = r<<4 | rune(c-'0')
		} else {
			r = r<<4 | rune(c|0x20-'a'+10)
		}
	}
	return r
}

// skip moves behind the value at pos and returns its bytes.
func (d *decoder) skip() []byte { return d.skipValue(false) }

// skipChecked is skip, but also records bad strings and too deep nesting.
func (d *decoder) skipChecked() []byte { return d.skipValue(true) }

func (d *decoder) skipValue(check bool) []byte {
	start, depth := d.pos, 0
	for {
		switch d.raw[d.pos] {
		case '"':
			if _, problem := d.text(); check && problem != "" {
				d.fail(problem)
			}
		case '{', '[':
			depth++
			d.pos++
			if check && depth+len(d.path) > maxDepth {
				d.fail(tooDeep)
			}
		case '}', ']':
			depth--
			d.pos++
		case ',', ':', ' ', '\t', '\r', '\n':
			d.pos++
		default:
			for !bytes.ContainsRune([]byte(",]} \t\r\n"), rune(d.raw[d.pos])) {
				d.pos++
			}
		}
		if depth == 0 {
			return d.raw[start:d.pos]
		}
	}
}
