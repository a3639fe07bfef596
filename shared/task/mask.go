package task

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode"
)

const (
	minMasked     = 7 // shorter runs of digits are not masked
	maxSeparators = 4 // between two digits of a number, as in "(138) - 7654"
)

// MaskNumbers prepares a text for logs and pages. It masks the middle of each run of 7 or more digits, since the run
// may be a phone number. Digits of any script count, with or without separators between them. Times, IP addresses and
// UUIDs with letters are not masked.
func MaskNumbers(text string) string {
	if countDigits(text) < minMasked {
		return text
	}
	var b strings.Builder
	done := 0
	for _, m := range timesAndAddresses.FindAllStringSubmatchIndex(text, -1) {
		start, end := m[0], m[1]
		if isPartOfNumber(text[:start], text[end:]) || !isTimeOrAddress(text, m) {
			continue
		}
		maskRuns(&b, text[done:start])
		b.WriteString(text[start:end])
		done = end
	}
	maskRuns(&b, text[done:])
	return b.String()
}

const (
	date     = `(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])`
	clock    = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[+-][0-9]{2}:?[0-9]{2})?`
	duration = `[0-9]{1,3}\.[0-9]{1,9}[mµn]?s`
	uuid     = `([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})`
	ipv4     = `([0-9]{1,3}(?:\.[0-9]{1,3}){3})(?::[0-9]{1,5})?`
	ipv6     = `([0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F.:]*[0-9a-fA-F])`
)

// timesAndAddresses matches text that may be a time, a UUID or an IP address. isTimeOrAddress checks its groups.
var timesAndAddresses = regexp.MustCompile(uuid + `|` + date + `(?:[T ]` + clock + `)?|` + clock + `|` + duration + `|` + ipv4 + `|` + ipv6)

// isTimeOrAddress reports whether a match of timesAndAddresses is a valid IP address, a UUID with letters, or a time.
func isTimeOrAddress(text string, match []int) bool {
	group := func(n int) string { return text[max(0, match[2*n]):max(0, match[2*n+1])] }
	if id := group(1); id != "" {
		return strings.ContainsAny(id, "abcdefABCDEF")
	}
	if address := group(2) + group(3); address != "" {
		_, err := netip.ParseAddr(address)
		return err == nil
	}
	return true
}

var (
	endsInNumber     = regexp.MustCompile(`[0-9][-._:]?$`)
	beginsWithNumber = regexp.MustCompile(`^[-._:]?[0-9]`)
)

// isPartOfNumber reports whether the text between before and after is joined to more digits.
func isPartOfNumber(before, after string) bool {
	return endsInNumber.MatchString(before[max(0, len(before)-2):]) || beginsWithNumber.MatchString(after)
}

// maskRuns writes the text with masked runs of digits.
func maskRuns(b *strings.Builder, text string) {
	for text != "" {
		start := strings.IndexFunc(text, isAnyDigit)
		if start < 0 {
			break
		}
		end, digits := measureRun(text[start:])
		b.WriteString(text[:start])
		b.WriteString(maskRun(text[start:start+end], digits))
		text = text[start+end:]
	}
	b.WriteString(text)
}

// measureRun returns the end of the run of digits at the beginning of text, and the number of its digits. Between two digits, a
// run has at most maxSeparators other characters, and letters only in an escape such as %2F of a URL. The digits of an
// escape count: they may be part of the number.
func measureRun(text string) (end, digits int) {
	separators := 0
	for i, r := range text {
		switch {
		case isAnyDigit(r):
			digits++
			separators = 0
			end = i + len(string(r))
		case separators == maxSeparators || unicode.IsLetter(r) && !strings.Contains(text[max(0, i-2):i], "%"):
			return end, digits
		default:
			separators++
		}
	}
	return end, digits
}

// maskRun masks the middle of a run as MaskPhone does, and keeps its separators. A run of more than maxDigits digits
// becomes "***".
func maskRun(run string, digits int) string {
	switch {
	case digits < minMasked:
		return run
	case digits > maxDigits:
		return "***"
	}
	head, tail := shownDigits(digits)
	n := 0
	return strings.Map(func(r rune) rune {
		if !isAnyDigit(r) {
			return r
		}
		n++
		if n > head && n <= digits-tail {
			return '*'
		}
		return r
	}, run)
}

func countDigits(text string) (n int) {
	for _, r := range text {
		if isAnyDigit(r) {
			n++
		}
	}
	return n
}

// isAnyDigit accepts the digits of all scripts, such as １ and ①.
func isAnyDigit(r rune) bool { return unicode.In(r, unicode.Nd, unicode.No) }
