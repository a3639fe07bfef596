package api

import (
	"errors"
	"strconv"
)

// ID names a stored row or a claim. On the wire it is a string of digits, as all
// ids are strings there and JavaScript loses digits of numbers above 2^53; a JSON
// number is understood too. 0 is the built-in admin as a caller, else none.
type ID int64

// String gives the digits.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// MarshalJSON writes a string.
func (id ID) MarshalJSON() ([]byte, error) { return []byte(`"` + id.String() + `"`), nil }

// UnmarshalJSON reads a string of digits or a number. null changes nothing.
func (id *ID) UnmarshalJSON(raw []byte) error {
	text := string(raw)
	if text == "null" {
		return nil
	}
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || ID(n).String() != text {
		return errors.New("must be an id: an integer between 0 and 9223372036854775807, as digits in a string or as a number")
	}
	*id = ID(n)
	return nil
}
