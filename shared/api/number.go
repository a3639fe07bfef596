package api

import (
	"errors"
	"strconv"
	"strings"
)

// Number is an unsigned 64-bit number in decimal digits; "" means none. In JSON it is a string, because JavaScript
// loses digits of numbers above 2^53; a JSON number without fraction and exponent is accepted, too.
type Number string

// NumberOf returns n as a Number.
func NumberOf(n uint64) Number { return Number(strconv.FormatUint(n, 10)) }

// Uint64 returns the value of n; "" is an error.
func (n Number) Uint64() (uint64, error) { return strconv.ParseUint(string(n), 10, 64) }

// UnmarshalJSON reads a string of digits or a number. null changes nothing.
func (n *Number) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	text := strings.Trim(string(raw), `"`)
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil || NumberOf(value) != Number(text) {
		return errors.New("must be an integer between 0 and 18446744073709551615, as digits in a string or as a number without fraction and exponent")
	}
	*n = Number(text)
	return nil
}
