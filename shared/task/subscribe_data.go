package task

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// CheckSubscribeData returns the keywords of a subscribe message that WeChat would refuse (errcode 47003), sorted, each
// with the reason. A keyword is a field of the message's template, such as thing1. The data must have the form
// {"thing1": {"value": "Tea"}, ...}. A value is a string or a number.
//
// The type of a keyword is its name without the number at the end. Values are checked by WeChat's documented rules for
// their types; keywords of unknown types may have any value that is not empty. WeChat may still refuse the data, since
// only WeChat knows which keywords a template has.
func CheckSubscribeData(raw []byte) []Field {
	var keywords map[string]json.RawMessage
	if !utf8.Valid(raw) || json.Unmarshal(raw, &keywords) != nil || len(keywords) == 0 {
		return []Field{{"message_data", `must be valid UTF-8 and an object such as {"thing1": {"value": "Tea"}}`}}
	}
	var bad []Field
	for _, name := range slices.Sorted(maps.Keys(keywords)) {
		if message := checkKeyword(name, keywords[name]); message != "" {
			bad = append(bad, Field{"message_data." + name, message})
		}
	}
	return bad
}

func checkKeyword(name string, raw json.RawMessage) string {
	value, ok := keywordValue(raw)
	switch {
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "":
		return "must have a name of letters, digits and _, such as thing1"
	case !ok:
		return `must be {"value": ...} with a string or a number (without an exponent) and nothing else`
	case value == "":
		return "must not be empty"
	case strings.ContainsAny(value, "\x00"+string(utf8.RuneError)):
		return "must not contain NUL, U+FFFD or half of a surrogate pair"
	}
	if fits, description := keywordRule(strings.TrimRight(name, "0123456789")); fits != nil && !fits(value) {
		return description
	}
	return ""
}

// keywordValue returns the text of {"value": ...}. A number must be written without an exponent.
func keywordValue(raw json.RawMessage) (text string, ok bool) {
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&object) != nil || len(object) != 1 {
		return "", false
	}
	switch value := object["value"].(type) {
	case string:
		return value, true
	case json.Number:
		return value.String(), !strings.ContainsAny(value.String(), "eE")
	}
	return "", false
}

// keywordRule returns the documented rule for a type of keywords and its description, or nil if there is none. Where the
// documentation is ambiguous, the rule is the less strict one: a message that WeChat accepts must not be refused.
func keywordRule(kind string) (fits func(value string) bool, description string) {
	switch kind {
	case "thing":
		return upTo(20, isPrintable), "must be at most 20 characters without line breaks"
	case "number":
		return func(s string) bool { return isDecimal(s, 32) }, "must be a number without a sign: up to 32 digits and up to 32 decimals"
	case "letter":
		return upTo(32, isLatin), "must be at most 32 letters a-z, A-Z"
	case "symbol":
		return upTo(5, isSymbol), "must be at most 5 symbols: neither letters nor digits"
	case "character_string":
		return upTo(32, isNotChinese), "must be at most 32 characters without line breaks, none of them a Chinese character"
	case "time":
		return isTime, "must be a 24-hour time such as 15:01 or 2019年10月1日 15:01, or two of them with ~ between"
	case "date":
		return isDate, "must be a date such as 2019年10月1日, 2019-10-01 or 2019年10月1日 15:01, or two of them with ~ between"
	case "amount":
		return isAmount, "must be a number without a sign: up to 10 digits and up to 10 decimals; a currency sign before it and 元 after it are optional"
	case "phone_number":
		return upTo(17, isDigitOrSymbol), "must be at most 17 digits and symbols"
	case "car_number":
		return isCarNumber, "must be at most 8 letters and digits, the first and the last may be Chinese"
	case "name":
		return isName, "must have no digits, and at most 20 characters, or 10 if one of them is Chinese"
	case "phrase":
		return upTo(5, isHan), "must be at most 5 Chinese characters"
	}
	return nil, ""
}

// upTo accepts at most limit characters of one class.
func upTo(limit int, is func(rune) bool) func(string) bool {
	return func(s string) bool { return within(s, limit) && all(s, is) }
}

func within(s string, limit int) bool { return utf8.RuneCountInString(s) <= limit }

func all(s string, is func(rune) bool) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !is(r) })
}

func isDigit(r rune) bool         { return '0' <= r && r <= '9' }
func isLatin(r rune) bool         { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
func isHan(r rune) bool           { return unicode.Is(unicode.Han, r) }
func isPrintable(r rune) bool     { return !unicode.IsControl(r) && r != '\u2028' && r != '\u2029' }
func isSymbol(r rune) bool        { return isPrintable(r) && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
func isNotChinese(r rune) bool    { return isPrintable(r) && !isHan(r) }
func isDigitOrSymbol(r rune) bool { return isDigit(r) || isSymbol(r) }

// isDecimal accepts a number with at most limit digits before the decimal point, and at most limit after it.
func isDecimal(s string, limit int) bool {
	whole, fraction, point := strings.Cut(s, ".")
	return whole != "" && within(whole, limit) && all(whole, isDigit) &&
		(!point || fraction != "" && within(fraction, limit) && all(fraction, isDigit))
}

func isAmount(s string) bool {
	if sign, size := utf8.DecodeRuneInString(s); unicode.Is(unicode.Sc, sign) {
		s = s[size:]
	}
	return isDecimal(strings.TrimSuffix(s, "元"), 10)
}

func isCarNumber(s string) bool {
	last, size := utf8.DecodeLastRuneInString(s)
	middle := s[:len(s)-size]
	if first, size := utf8.DecodeRuneInString(middle); isHan(first) {
		middle = middle[size:]
	}
	plain := func(r rune) bool { return isDigit(r) || isLatin(r) }
	return within(s, 8) && (plain(last) || isHan(last)) && all(middle, plain)
}

func isName(s string) bool {
	limit := 20
	if strings.ContainsFunc(s, isHan) {
		limit = 10
	}
	return within(s, limit) && all(s, func(r rune) bool { return isPrintable(r) && !unicode.IsDigit(r) })
}

// isTime accepts a time of day, or a range of two, each with or without a date.
func isTime(s string) bool {
	from, to, ranged := strings.Cut(s, "~")
	_, fromTime := parseMoment(from)
	_, toTime := parseMoment(to)
	return fromTime && (toTime || !ranged)
}

// isDate accepts a date, or a range of two, each with or without a time of day. The end of a range may also be a
// time of day without a date.
func isDate(s string) bool {
	from, to, ranged := strings.Cut(s, "~")
	fromDate, _ := parseMoment(from)
	toDate, toTime := parseMoment(to)
	return fromDate && (toDate || toTime || !ranged)
}

// parseMoment reports whether s has a date and whether it has a time of day. Both are false for any other text.
func parseMoment(s string) (hasDate, hasTime bool) {
	s = strings.Join(strings.Fields(strings.Replace(s, "日", "日 ", 1)), " ")
	hours := []string{"15:04", "15:04:05"}
	if parses(s, "", hours) {
		return false, true
	}
	for _, day := range []string{
		"2006年1月2日", "2006年1月", "1月2日", "2006-1-2", "2006-1", "1-2", "2006/1/2", "2006/1", "1/2", "2006.1.2", "2006.1", "1.2",
	} {
		if parses(s, day, []string{""}) {
			return true, false
		}
		if parses(s, day+" ", hours) {
			return true, true
		}
	}
	return false, false
}

func parses(s, prefix string, layouts []string) bool {
	return slices.ContainsFunc(layouts, func(layout string) bool {
		_, err := time.Parse(prefix+layout, s)
		return err == nil
	})
}
