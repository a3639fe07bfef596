package task

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Hash is the first 128 bits of a SHA-256; the database stores it as a uuid.
type Hash [16]byte

// KeyHash identifies an idempotency key of a caller for a kind of resource, such as "sms". Lengths are hashed too, so
// that different arguments are never hashed as the same bytes.
func KeyHash(caller int64, resource, key string) Hash {
	b := make([]byte, 0, 512)
	b = binary.BigEndian.AppendUint64(b, uint64(caller))
	b = binary.BigEndian.AppendUint64(b, uint64(len(resource)))
	b = append(b, resource...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(key)))
	b = append(b, key...)
	return hashOf(b)
}

// Fingerprint identifies the content of a decoded request. It is the hash of v as canonical JSON: the keys of every
// object are sorted by bytes, null members are left out, numbers stay as written (1 and 1.0 differ), and escapes in
// strings do not matter. The caller must clear fields that do not count, such as the idempotency key. The error is that
// of encoding v as JSON.
//
// Fingerprints are stored permanently. The escapes of encoding/json have changed between releases of Go, so this package
// writes the canonical form itself.
func Fingerprint(v any) (Hash, error) {
	encoded, err := json.Marshal(v)
	if err != nil {
		return Hash{}, fmt.Errorf("fingerprint: %w", err)
	}
	canonical, _ := appendCanonical(make([]byte, 0, len(encoded)), encoded)
	return hashOf(canonical), nil
}

func hashOf(b []byte) Hash {
	sum := sha256.Sum256(b)
	return Hash(sum[:16])
}

// appendCanonical appends the canonical form of the first value of encoded. json.Marshal wrote encoded, so it is valid
// and has no white space. rest is the text after the value.
func appendCanonical(b, encoded []byte) (canonical, rest []byte) {
	end := valueEnd(encoded)
	value, rest := encoded[:end], encoded[end:]
	switch value[0] {
	case '{':
		return appendCanonicalObject(b, value), rest
	case '[':
		b = append(b, '[')
		for elements := value[1:]; elements[0] != ']'; {
			if elements[0] == ',' {
				b, elements = append(b, ','), elements[1:]
			}
			b, elements = appendCanonical(b, elements)
		}
		return append(b, ']'), rest
	case '"':
		return appendCanonicalString(b, value), rest
	}
	return append(b, value...), rest
}

// member is a name of an object without its quotes, and the encoded value.
type member struct{ name, value []byte }

func appendCanonicalObject(b, object []byte) []byte {
	var few [16]member
	members := few[:0]
	for rest := object[1:]; rest[0] != '}'; {
		if rest[0] == ',' {
			rest = rest[1:]
		}
		nameLen := valueEnd(rest)
		value := rest[nameLen+1:]
		valueLen := valueEnd(value)
		members = append(members, member{unquoted(rest[:nameLen]), value[:valueLen]})
		rest = value[valueLen:]
	}
	slices.SortStableFunc(members, func(x, y member) int { return bytes.Compare(x.name, y.name) })
	b = append(b, '{')
	start := len(b)
	for i, m := range members {
		if string(m.value) == "null" || i+1 < len(members) && bytes.Equal(m.name, members[i+1].name) { // of equal names the last one counts
			continue
		}
		if len(b) > start {
			b = append(b, ',')
		}
		b = append(appendQuoted(b, m.name), ':')
		b, _ = appendCanonical(b, m.value)
	}
	return append(b, '}')
}

// valueEnd returns the length of the first value of encoded.
func valueEnd(encoded []byte) int {
	depth := 0
	for i := 0; i < len(encoded); i++ {
		switch encoded[i] {
		case '"':
			for i++; encoded[i] != '"'; i++ {
				if encoded[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // the end of the array or object that contains this number, true, false or null
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(encoded)
}

func appendCanonicalString(b, quoted []byte) []byte {
	if isPlain(quoted) {
		return append(b, quoted...)
	}
	return appendQuoted(b, unquoted(quoted))
}

// isPlain reports whether an encoded string has no escapes and is valid UTF-8.
func isPlain(quoted []byte) bool {
	return bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted)
}

// unquoted returns the characters of an encoded string.
func unquoted(quoted []byte) []byte {
	if isPlain(quoted) {
		return quoted[1 : len(quoted)-1]
	}
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		panic(err) // cannot happen: json.Marshal wrote quoted
	}
	return []byte(text)
}

// appendQuoted escapes only what JSON requires: quotes, backslashes, and control characters always as \u00XX.
func appendQuoted(b, text []byte) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
