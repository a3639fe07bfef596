package task

import (
	"slices"
	"strings"
)

// What ValidUser, ValidQueue and ValidKey accept, for error messages. None of them accepts . or .. alone.
const (
	UserRule  = "must be 1 to 50 characters of A-Z a-z 0-9 . _ -"
	QueueRule = "must be 1 to 63 characters of A-Z a-z 0-9 . _ -"
	KeyRule   = "must be 1 to 255 characters of A-Z a-z 0-9 . _ : -"
)

// ValidUser reports whether a caller or user may have this name.
func ValidUser(name string) bool { return ValidName(name, 50) }

// ValidQueue reports whether a queue may have this name.
func ValidQueue(name string) bool { return ValidName(name, 63) }

// ValidKey reports whether s may be an idempotency key, a client_msg_id or the type of a message. It allows colons,
// which ValidName does not.
func ValidKey(s string) bool { return validToken(s, 255, '.', '_', '-', ':') }

// ValidName reports whether name is 1 to limit of the characters A-Z a-z 0-9 . _ - and can be a segment of a path: it is
// neither . nor ..
func ValidName(name string, limit int) bool { return validToken(name, limit, '.', '_', '-') }

func validToken(s string, limit int, others ...rune) bool {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || slices.Contains(others, c))
	}
	return len(s) >= 1 && len(s) <= limit && s != "." && s != ".." && !strings.ContainsFunc(s, bad)
}
