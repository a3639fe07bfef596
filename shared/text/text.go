// Package text shortens and cleans text that others wrote, before it goes to a log,
// a terminal, an error message or the database.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Cut returns at most the first limit characters of s, as valid UTF-8.
func Cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit])
}

// Printable replaces each character of s that is not printable, line breaks and terminal
// controls included, by with.
func Printable(s string, with rune) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return with
	}, s)
}

// Line returns s as one line of printable characters: white space becomes single spaces. Other
// characters that are not printable, invalid UTF-8 and U+FFFD are left out.
func Line(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
