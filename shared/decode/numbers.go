package decode

import (
	"bytes"
	"strconv"
)

const maxExponent = 300 // positive or negative

// Numbers refuses a JSON value with a number that programs might fail to read: one with more than maxChars characters, with too
// large an exponent, or outside of the range of a float64 (RFC 8259, section 6). maxChars is at most 300, and value is well formed.
func (r *BadFields) Numbers(field string, value []byte, maxChars int) {
	if hasUnsafeNumber(value, maxChars) {
		r.addf(field, "has a number with more than %d characters, an exponent beyond ±%d, or a value beyond ±1.7e308", maxChars, maxExponent)
	}
}

func hasUnsafeNumber(value []byte, maxChars int) bool {
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			for i++; value[i] != '"'; i++ {
				if value[i] == '\\' {
					i++ // the escaped character may be a quote
				}
			}
		case c == '-' || isDigit(c):
			start := i
			for i < len(value) && isNumberPart(value[i]) {
				i++
			}
			if isUnsafe(value[start:i], maxChars) {
				return true
			}
			i--
		}
	}
	return false
}

func isUnsafe(number []byte, maxChars int) bool {
	e := bytes.IndexAny(number, "eE")
	if len(number) > maxChars || e < 0 {
		return len(number) > maxChars // without an exponent, so few characters are within the range
	}
	exponent, err := strconv.Atoi(string(number[e+1:]))
	_, valueErr := strconv.ParseFloat(string(number), 64)
	return err != nil || exponent > maxExponent || exponent < -maxExponent || valueErr != nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isNumberPart(c byte) bool {
	return isDigit(c) || c == '+' || c == '-' || c == '.' || c|0x20 == 'e'
}
