package api

import (
	"errors"
	"strconv"
	"strings"
)

// ID identifies a stored row or a claim. In JSON it is a string of digits, because all ids are strings and JavaScript
// loses digits of numbers above 2^53; a JSON number is accepted, too. As the id of a caller, 0 is the built-in admin;
// otherwise 0 means none.
type ID int64

// String returns the digits.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// MarshalJSON writes a string.
func (id ID) MarshalJSON() ([]byte, error) { return []byte(`"` + id.String() + `"`), nil }

// UnmarshalJSON reads a string of digits or a number. null changes nothing.
func (id *ID) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	text := strings.Trim(string(raw), `"`)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || ID(n).String() != text {
		return errors.New("must be an id: an integer between 0 and 9223372036854775807, as digits in a string or as a number")
	}
	*id = ID(n)
	return nil
}
