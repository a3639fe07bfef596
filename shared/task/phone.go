package task

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	phoneRule = "must be + or 00 and 7 to 15 digits, or else 3 to 19 digits; spaces, dashes, dots and brackets are ignored"

	maxPhoneText = 50 // characters of a number as it is written
	minDigits    = 3  // some short codes of operators and banks have three digits, such as 139 and 900
	maxDigits    = 19 // service numbers of SMS providers, such as 1069…, may be longer than E.164 allows
	maxE164      = 15 // digits, with the country code
	minE164      = 7  // such as +683 4000: three digits of the country code and four more
	minNational  = 7  // shorter numbers are short codes
)

// Country is the calling code of the default country, such as 86; "" if there is none. Numbers of the default country
// may be written without the code.
type Country string

// Valid reports whether c is "" or 1 to 3 digits of which the first is not 0.
func (c Country) Valid() bool {
	return c == "" || len(c) <= 3 && c[0] != '0' && onlyDigits(string(c))
}

// Phone converts a phone number to the form in which it is stored: digits, with or without + before them. If text is
// not a phone number, problem says why and what is accepted. Whether text is a phone number does not depend on c.
//
// Punctuation is removed, and the (0) of "+44 (0)20". If c is "", nothing else is changed. Otherwise numbers with + or 00
// and national numbers of c are converted to E.164. All others are taken for short codes or service numbers, and are not
// changed.
//
// Only lengths and prefixes are checked, by E.164: there is no list of existing numbers.
func (c Country) Phone(text string) (number, problem string) {
	prefix, digits, problem := splitPhone(text)
	switch {
	case problem != "":
		return "", problem
	case c == "":
		return prefix + digits, ""
	case prefix != "":
		return "+" + digits, ""
	}
	if national, ok := c.national(digits); ok && len(c)+len(national) <= maxE164 {
		return "+" + string(c) + national, ""
	}
	return digits, ""
}

// Spellings returns number and the other forms in which the same number may have been stored before c was set. number
// must be a result of Phone. Phone converts each of the other forms to number.
func (c Country) Spellings(number string) []string {
	spellings := []string{number}
	e164, international := strings.CutPrefix(number, "+")
	if c == "" || !international {
		return spellings
	}
	candidates := []string{"00" + e164}
	if national, found := strings.CutPrefix(e164, string(c)); found {
		candidates = append(candidates, national, c.trunk()+national, e164)
	}
	for _, candidate := range candidates {
		if converted, _ := c.Phone(candidate); converted == number && !slices.Contains(spellings, candidate) {
			spellings = append(spellings, candidate)
		}
	}
	return spellings
}

// trunk returns the prefix that is dialled before a national number within the country, in most countries 0. It returns ""
// for countries in which a leading 0 is part of the number.
func (c Country) trunk() string {
	switch c {
	case "1":
		return "1"
	case "7":
		return "8"
	case "36":
		return "06"
	case "375":
		return "80"
	case "39", "225", "241", "242", "378":
		return ""
	}
	return "0"
}

// national returns the national part of digits, a number without + or 00. It removes the trunk prefix and, for 1, 7 and 86,
// a country code that the length shows. ok is false for short codes and, for 1, 7 and 86, for all other numbers that do not
// have the national form.
func (c Country) national(digits string) (rest string, ok bool) {
	switch c {
	case "1", "7": // ten digits
		if len(digits) == 11 && (strings.HasPrefix(digits, c.trunk()) || strings.HasPrefix(digits, string(c))) {
			digits = digits[1:]
		}
		return digits, len(digits) == 10
	case "86": // mobile numbers begin with 13 to 19, landlines with 0, and all others are short codes or service numbers
		if landline, found := strings.CutPrefix(digits, "0"); found {
			return landline, len(landline) >= minNational
		}
		if len(digits) == 13 {
			digits = strings.TrimPrefix(digits, "86")
		}
		return digits, len(digits) == 11 && digits[0] == '1' && digits[1] >= '3'
	}
	rest = strings.TrimPrefix(digits, c.trunk())
	return rest, len(rest) >= minNational
}

// splitPhone splits a number into its prefix "+", "00" or "", and its digits.
func splitPhone(text string) (prefix, digits, problem string) {
	switch {
	case text == "":
		return "", "", "is required; it " + phoneRule
	case utf8.RuneCountInString(text) > maxPhoneText:
		return "", "", fmt.Sprintf("has more than %d characters; it %s", maxPhoneText, phoneRule)
	}
	buffer := make([]byte, 0, maxPhoneText)
	for _, r := range withoutTrunkPrefix(text) {
		switch {
		case r >= '0' && r <= '9':
			buffer = append(buffer, byte(r))
		case r == '+' && prefix == "" && len(buffer) == 0:
			prefix = "+"
		case !isSeparator(r):
			return "", "", fmt.Sprintf("must not contain %q here; it %s", r, phoneRule)
		}
	}
	digits = string(buffer)
	if rest, found := strings.CutPrefix(digits, "00"); found && prefix == "" {
		prefix, digits = "00", rest
	}
	switch n := len(digits); {
	case prefix == "" && (n < minDigits || n > maxDigits):
		return "", "", fmt.Sprintf("has %d digits; it %s", n, phoneRule)
	case prefix != "" && (n < minE164 || n > maxE164):
		return "", "", fmt.Sprintf("has %d digits after %s; it %s", n, prefix, phoneRule)
	case prefix != "" && digits[0] == '0':
		return "", "", "has a country code that begins with 0; it " + phoneRule
	}
	return prefix, digits, ""
}

// isSeparator reports whether people may write r between the digits of a number.
func isSeparator(r rune) bool { return strings.ContainsRune(" -.()[]", r) }

// withoutTrunkPrefix removes the (0) of "+44 (0)20 7946 0018", which is dialled only within the country. The 0 stays if
// it is not the trunk prefix of the country, as in Italy (39), or if nothing that begins with + or 0 is before it.
func withoutTrunkPrefix(text string) string {
	before, after, found := strings.Cut(text, "(0)")
	if !found {
		return text
	}
	number := strings.Join(strings.FieldsFunc(before, isSeparator), "")
	country := strings.TrimLeft(number, "+0")
	if country != number && Country(country).trunk() == "0" {
		return before + after
	}
	return text
}

// MaskPhone masks the middle of a stored phone number, for logs: "13800138000" becomes "138****8000". If the number has
// fewer than 11 digits, at most half of them are shown. A text that is not a phone number becomes "***".
func MaskPhone(number string) string {
	if number == "" {
		return ""
	}
	digits := strings.TrimPrefix(number, "+")
	n := len(digits)
	if n < minDigits || n > maxDigits || !onlyDigits(digits) {
		return "***"
	}
	head, tail := shownDigits(n)
	return number[:len(number)-n] + digits[:head] + strings.Repeat("*", n-head-tail) + digits[n-tail:]
}

// shownDigits returns how many of the first and last of n digits are not masked.
func shownDigits(n int) (head, tail int) {
	if n < 11 {
		return n / 4, n/2 - n/4
	}
	return 3, 4
}

func onlyDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }
