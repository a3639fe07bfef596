package task

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// maxRendered is the number of characters after which a rendered text is cut. It is more than MaxContent, so a text that
// was cut is refused as too long.
const maxRendered = 10 * MaxContent

// Template is a parsed message text with placeholders. The zero value renders "". A Template is immutable and safe for
// concurrent use.
type Template struct {
	parts []templatePart
	names []string
}

// templatePart is literal text and the placeholder after it. In the last part name may be "": no placeholder follows.
type templatePart struct {
	literal string
	name    string
}

// ParseTemplate reads content. A placeholder is {name}, where name is one or more characters other than braces, taken as
// written. Any other brace is text, so every content is a template.
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

// Names returns the placeholders in order of first appearance, each once.
func (t Template) Names() []string { return slices.Clone(t.names) }

// Render replaces the placeholders by params. Braces in a value are text. text is cut at maxRendered characters. missing
// has the placeholders without a parameter, in order of first appearance; they stay in the text. unused has the
// parameters without a placeholder, sorted.
func (t Template) Render(params map[string]string) (text string, missing, unused []string) {
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
	return Cut(t.fill(params), maxRendered), missing, unused
}

// fill returns the text, or a beginning of the text that has at least maxRendered characters: a long value in many
// placeholders would need too much memory.
func (t Template) fill(params map[string]string) string {
	var b strings.Builder
	for _, p := range t.parts {
		if b.Len() >= maxRendered*utf8.UTFMax {
			break
		}
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
	return b.String()
}
