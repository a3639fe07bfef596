package store

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/task"
)

// MustJSON encodes a value whose encoding cannot fail, such as a map of strings and numbers.
func MustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// ValidTime reports whether the year of a time in UTC is between 1 and 9999. Constraints ensure this for columns of times,
// but not for times inside JSON: Go can read some times that it cannot write.
func ValidTime(at time.Time) bool {
	year := at.UTC().Year()
	return 1 <= year && year <= 9999
}

// Element is an element of a List.
type Element interface {
	// Valid reports whether responses can contain the element.
	Valid() bool
}

// List is a JSON array in a column. Elements that do not decode as T, or are not valid, are left out. So one bad element
// does not make a whole page fail.
type List[T Element] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *List[T]) UnmarshalJSON(text []byte) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(text, &elements); err != nil {
		return err
	}
	*l = make(List[T], 0, len(elements))
	for _, text := range elements {
		var element T
		if json.Unmarshal(text, &element) == nil && element.Valid() {
			*l = append(*l, element)
		}
	}
	return nil
}

// maxLoggedRequest is how many bytes of a request a log row has at most.
const maxLoggedRequest = 8 << 10

// LogJSON returns a request body as it is stored in the logs. If the type jsonb accepts the body and it is not longer
// than maxLoggedRequest, this is the body itself, so that Postgres can read its values. Otherwise it is the text
// of the body as a JSON string, cut to maxLoggedRequest.
func LogJSON(request []byte) string {
	if len(request) <= maxLoggedRequest && json.Valid(request) && utf8.Valid(request) && !jsonbMayReject(request) {
		return string(request)
	}
	return MustJSON(task.Cut(Storable(string(request[:min(len(request), maxLoggedRequest)])), maxLoggedRequest))
}

// Storable converts any bytes to a text that Postgres accepts.
func Storable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// jsonbMayReject reports whether valid JSON has something that the type jsonb may reject: NUL,
// surrogates, numbers with an exponent, deep nesting. False positives are allowed: the body is then stored as a
// string, and nothing is lost.
func jsonbMayReject(text []byte) bool {
	if bytes.Contains(text, []byte(`\u0000`)) || bytes.Contains(text, []byte(`\ud`)) || bytes.Contains(text, []byte(`\uD`)) {
		return true
	}
	depth, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > 32 {
				return true
			}
		case c == '}' || c == ']':
			depth--
		case c == 'e' && i > 0 && text[i-1] >= '0' && text[i-1] <= '9', c == 'E':
			return true
		}
	}
	return false
}
