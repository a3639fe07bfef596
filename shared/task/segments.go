package task

import "unicode/utf16"

// Encoding is the character set in which a text is sent to a phone.
type Encoding string

// The two encodings of 3GPP TS 23.038 that carry text.
const (
	GSM7 Encoding = "GSM-7" // the 7 bit default alphabet and its extension table
	UCS2 Encoding = "UCS-2" // 16 bit units; phones read them as UTF-16
)

// A short message has 140 octets (3GPP TS 23.040 section 9.2.3.16). A part of a longer text has 134 octets of text and 6
// of concatenation header (section 9.2.3.24.1).
const (
	singleSeptets, partSeptets = 160, 153
	singleUnits, partUnits     = 70, 67
)

// Segments returns how many short messages a text needs, and their encoding: GSM-7 if its alphabet has every character
// of the text, else UCS-2. A character is never split between two messages. The result for "" is 0 and GSM-7. A byte
// that is not UTF-8 counts as the replacement character.
func Segments(text string) (count int, encoding Encoding) {
	if count, ok := countParts(text, septets, singleSeptets, partSeptets); ok {
		return count, GSM7
	}
	count, _ = countParts(text, utf16.RuneLen, singleUnits, partUnits)
	return count, UCS2
}

// countParts counts the messages that a text needs: one if it fits in single, else parts of the size part. ok is false
// if the encoding lacks a character, for which width returns 0 or less.
func countParts(text string, width func(rune) int, single, part int) (count int, ok bool) {
	total, used := 0, part // so that the first character begins a message
	for _, r := range text {
		w := width(r)
		if w <= 0 {
			return 0, false
		}
		total += w
		if used+w > part {
			count++
			used = 0
		}
		used += w
	}
	if count > 1 && total <= single {
		count = 1
	}
	return count, true
}

// septets returns the width of r in the default alphabet (3GPP TS 23.038 section 6.2.1): 1, or 2 in the extension table
// (section 6.2.1.1), whose characters are written after an escape; 0 if r is in neither.
func septets(r rune) int {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= ' ' && r <= '?':
		return 1
	}
	switch r {
	case '\n', '\r', '@', '_', '¡', '£', '¤', '¥', '§', '¿',
		'Ä', 'Å', 'Æ', 'Ç', 'É', 'Ñ', 'Ö', 'Ø', 'Ü', 'ß',
		'à', 'ä', 'å', 'æ', 'è', 'é', 'ì', 'ñ', 'ò', 'ö', 'ø', 'ù', 'ü',
		'Γ', 'Δ', 'Θ', 'Λ', 'Ξ', 'Π', 'Σ', 'Φ', 'Ψ', 'Ω':
		return 1
	case '\f', '[', '\\', ']', '^', '{', '|', '}', '~', '€':
		return 2
	}
	return 0
}
