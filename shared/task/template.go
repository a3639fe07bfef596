package task

import (
	"slices"
	"strings"
)

// Template is a parsed message text with placeholders. The zero value renders "".
// A Template never changes and may be used by many goroutines.
type Template struct {
	parts []templatePart
	names []string
}

// templatePart is literal text followed by a placeholder; the last part has none.
type templatePart struct {
	literal string
	name    string
}

// ParseTemplate reads content. A placeholder is {name}, where name is one or more
// characters other than braces, taken as written. Any other brace is text, so
// every content is a template.
func ParseTemplate(content string) Template {
	var t Template
	start, open := 0, -1
	for i := range len(content) {
		switch content[i] {
		case '{':
			open = i
		case '}':
			if open >= 0 && open+1 < i {
				name := content[open+1 : i]
				t.parts = append(t.parts, templatePart{content[start:open], name})
				if !slices.Contains(t.names, name) {
					t.names = append(t.names, name)
				}
				start = i + 1
			}
			open = -1
		}
	}
	if start < len(content) {
		t.parts = append(t.parts, templatePart{literal: content[start:]})
	}
	return t
}

// Names lists the placeholders in order of first appearance, each once.
func (t Template) Names() []string { return slices.Clone(t.names) }

// Render puts params in place of the placeholders, in a single pass: braces in a
// value stay text. missing lists the placeholders without a parameter, in order of
// first appearance; in text they stay as written. unused lists the parameters
// without a placeholder, sorted.
func (t Template) Render(params map[string]string) (text string, missing, unused []string) {
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.literal)
		if p.name == "" {
			continue
		}
		if value, ok := params[p.name]; ok {
			b.WriteString(value)
		} else {
			b.WriteString("{" + p.name + "}")
		}
	}
	for _, name := range t.names {
		if _, ok := params[name]; !ok {
			missing = append(missing, name)
		}
	}
	for name := range params {
		if !slices.Contains(t.names, name) {
			unused = append(unused, name)
		}
	}
	slices.Sort(unused)
	return b.String(), missing, unused
}
