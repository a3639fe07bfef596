package apidocs

import (
	"html/template"
	"strings"
)

// markdown renders the subset of Markdown that the contract uses: paragraphs, lists, code and bold text.
func markdown(text string) template.HTML {
	var b strings.Builder
	for _, block := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if block = strings.TrimSpace(block); block == "" {
			continue
		}
		before, items := splitList(block)
		if before != "" {
			b.WriteString("<p>" + inline(before) + "</p>")
		}
		if len(items) > 0 {
			b.WriteString("<ul>")
			for _, item := range items {
				b.WriteString("<li>" + inline(item) + "</li>")
			}
			b.WriteString("</ul>")
		}
	}
	return template.HTML(b.String())
}

// splitList returns the text before the first item of a list, and the items.
func splitList(block string) (before string, items []string) {
	for line := range strings.Lines(block) {
		line = strings.TrimSuffix(line, "\n")
		switch item, isItem := strings.CutPrefix(line, "- "); {
		case isItem:
			items = append(items, item)
		case len(items) > 0:
			items[len(items)-1] += " " + strings.TrimSpace(line)
		default:
			before += line + "\n"
		}
	}
	return strings.TrimSpace(before), items
}

// inline escapes a text, and renders code and bold text. Bold text may contain code.
func inline(text string) string {
	var b strings.Builder
	inCode, inBold := false, false
	for i, part := range strings.Split(template.HTMLEscapeString(strings.TrimSpace(text)), "`") {
		if i > 0 {
			b.WriteString(tag("code", inCode))
			inCode = !inCode
		}
		if inCode {
			b.WriteString(part)
			continue
		}
		for j, words := range strings.Split(part, "**") {
			if j > 0 {
				b.WriteString(tag("strong", inBold))
				inBold = !inBold
			}
			b.WriteString(words)
		}
	}
	return b.String()
}

// tag returns the closing tag of an element if the element is open, else its opening tag.
func tag(name string, isOpen bool) string {
	if isOpen {
		return "</" + name + ">"
	}
	return "<" + name + ">"
}
