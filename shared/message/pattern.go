package message

import (
	"slices"
	"strings"
)

// ValidPattern reports whether p is a subject or a NATS pattern: * stands for one token, > at the end for one or more.
func ValidPattern(p string) bool {
	tokens := strings.Split(p, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" && i == len(tokens)-1 {
			tokens[i] = "x"
		}
	}
	return wellFormed(strings.Join(tokens, "."))
}

// covers reports whether the valid pattern p matches a subject.
func covers(p, subject string) bool {
	for p != "" && subject != "" {
		var want, token string
		want, p, _ = strings.Cut(p, ".")
		if want == ">" {
			return true
		}
		token, subject, _ = strings.Cut(subject, ".")
		if want != "*" && want != token {
			return false
		}
	}
	return p == "" && subject == ""
}

// coveredBy reports whether one of the patterns matches a subject.
func coveredBy(patterns []string, subject string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, subject) })
}
