package task

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
)

// Hash is the first 128 bits of a SHA-256; the database stores it as a uuid.
type Hash [16]byte

// KeyHash identifies an idempotency key within its scope. The hashed bytes are different for different triples.
func KeyHash(caller int64, resource, key string) Hash {
	b := make([]byte, 0, 512)
	b = binary.BigEndian.AppendUint64(b, uint64(caller))
	b = binary.BigEndian.AppendUint64(b, uint64(len(resource)))
	b = append(b, resource...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(key)))
	b = append(b, key...)
	return hashOf(b)
}

// Fingerprint identifies the content of a decoded request: the hash of v's JSON with the keys of every object
// sorted by bytes, members that are null left out, numbers as written (1 and 1.0 differ) and strings by their
// characters, however they were escaped. The caller first clears fields that must not count, such as the
// idempotency key. The error is that of encoding v as JSON.
//
// Fingerprints are stored permanently, so the canonical form is written here and not by encoding/json, whose
// escapes have changed between releases of Go.
func Fingerprint(v any) (Hash, error) {
	encoded, err := json.Marshal(v)
	if err != nil {
		return Hash{}, fmt.Errorf("fingerprint: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return Hash{}, fmt.Errorf("fingerprint: %w", err)
	}
	return hashOf(appendCanonical(encoded[:0], tree)), nil
}

func hashOf(b []byte) Hash {
	sum := sha256.Sum256(b)
	return Hash(sum[:16])
}

// appendCanonical appends the canonical form of a value that a json.Decoder with UseNumber decoded.
func appendCanonical(b []byte, value any) []byte {
	switch v := value.(type) {
	case string:
		return appendCanonicalString(b, v)
	case json.Number:
		return append(b, v...)
	case bool:
		if v {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	case []any:
		b = append(b, '[')
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, element)
		}
		return append(b, ']')
	case map[string]any:
		return appendCanonicalObject(b, v)
	}
	return append(b, "null"...)
}

func appendCanonicalObject(b []byte, object map[string]any) []byte {
	names := make([]string, 0, len(object))
	for name, value := range object {
		if value != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCanonicalString(b, name)
		b = append(b, ':')
		b = appendCanonical(b, object[name])
	}
	return append(b, '}')
}

// appendCanonicalString escapes only what JSON requires: quote, backslash and control characters, the latter
// always as \u00XX.
func appendCanonicalString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
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
