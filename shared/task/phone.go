package task

import "strings"

// ValidPhone tells whether s is a phone number as the service takes it: 3 to 19
// ASCII digits, with or without a leading '+'. Numbers are kept as given.
func ValidPhone(s string) bool {
	digits := strings.TrimPrefix(s, "+")
	if len(digits) < 3 || len(digits) > 19 {
		return false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return false
		}
	}
	return true
}

// MaskPhone hides the middle of a phone number, for logs: "13800138000" becomes
// "138****8000". A number of fewer than 11 digits shows at most half of them, and
// what is no phone number shows nothing.
func MaskPhone(s string) string {
	if s == "" {
		return ""
	}
	if !ValidPhone(s) {
		return "***"
	}
	digits := strings.TrimPrefix(s, "+")
	n := len(digits)
	head, tail := 3, 4
	if n < 11 {
		head, tail = n/4, n/2-n/4
	}
	plus := s[:len(s)-n]
	return plus + digits[:head] + strings.Repeat("*", n-head-tail) + digits[n-tail:]
}
