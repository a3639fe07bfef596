package apidocs

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"strings"

	_ "embed"
)

//go:embed reference.html
var referenceTemplate string

// reference renders the page of all operations and schemas.
func reference() ([]byte, error) {
	contract, err := parseContract()
	if err != nil {
		return nil, err
	}
	examples, err := readExamples()
	if err != nil {
		return nil, err
	}
	page, err := template.New("reference").Parse(referenceTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = page.Execute(&b, referencePage{
		Title: contract.text("info", "title"), Version: contract.text("info", "version"),
		Description: markdown(contract.text("info", "description")), Examples: examples,
		Groups: groups(contract), Schemas: schemas(contract),
	})
	return b.Bytes(), err
}

type referencePage struct {
	Title, Version string
	Description    template.HTML
	Examples       []example
	Groups         []group
	Schemas        []schema
}

// group is the operations of one tag.
type group struct {
	Name        string
	Description template.HTML
	Operations  []operation
}

type operation struct {
	ID, Method, Path, Summary string
	Description               template.HTML
	Roles                     []string
	WithinQueues              bool // x-within-queues: also for admins with queues, within their queues
	Parameters                []field
	Body                      []content
	Responses                 []response
}

// field is a parameter, or a property of a schema.
type field struct {
	Name, In    string
	Required    bool
	Type        template.HTML
	Description template.HTML
}

// content is a body in one media type.
type content struct {
	MediaType string
	Type      template.HTML
	Examples  []bodyExample
}

type bodyExample struct{ Name, Text string }

type response struct {
	Status      string
	Description template.HTML
	Headers     []string
	Content     []content
}

type schema struct {
	Name        string
	Type        template.HTML
	Description template.HTML
	Fields      []field
}

// groups groups the operations by their first tag. Webhooks come last in a group.
func groups(contract node) []group {
	byTag := map[string][]operation{}
	for _, section := range []string{"paths", "webhooks"} {
		for _, path := range contract.at(section).entries() {
			for _, method := range path.value.entries() {
				op := operationOf(path.key, method.key, method.value)
				if section == "webhooks" {
					op.Method, op.Path = "webhook", path.key
				}
				tag := method.value.texts("tags")[0]
				byTag[tag] = append(byTag[tag], op)
			}
		}
	}
	var all []group
	for _, tag := range contract.at("tags").items() {
		name := tag.text("name")
		all = append(all, group{name, markdown(tag.text("description")), byTag[name]})
	}
	return all
}

func operationOf(path, method string, n node) operation {
	op := operation{
		ID: n.text("operationId"), Method: strings.ToUpper(method), Path: path, Summary: n.text("summary"),
		Description: markdown(n.text("description")), Roles: n.texts("x-roles"), WithinQueues: n.text("x-within-queues") == "true",
	}
	for _, p := range n.at("parameters").items() {
		p = p.resolved()
		op.Parameters = append(op.Parameters, field{
			Name: p.text("name"), In: p.text("in"), Required: p.text("required") == "true",
			Type: typeOf(p.at("schema")), Description: markdown(p.text("description")),
		})
	}
	op.Body = contents(n.at("requestBody").resolved())
	for _, r := range n.at("responses").entries() {
		shown := response{Status: r.key, Description: markdown(r.value.resolved().text("description"))}
		if strings.HasPrefix(r.key, "1") || strings.HasPrefix(r.key, "2") { // all errors have the same content
			for _, h := range r.value.resolved().at("headers").entries() {
				shown.Headers = append(shown.Headers, h.key)
			}
			shown.Content = contents(r.value.resolved())
		}
		op.Responses = append(op.Responses, shown)
	}
	return op
}

// contents returns the body of a request or response in each media type.
func contents(n node) (all []content) {
	for _, c := range n.at("content").entries() {
		body := content{MediaType: c.key, Type: typeOf(dataOf(c.value.at("schema")))}
		for _, e := range c.value.at("examples").entries() {
			value := e.value.resolved().at("value")
			name, text := cmp.Or(e.value.resolved().text("summary"), e.key), value.text()
			if text == "" {
				text = value.json()
			}
			body.Examples = append(body.Examples, bodyExample{name, text})
		}
		all = append(all, body)
	}
	return all
}

// dataOf returns the schema of the property data if schema is an envelope with data, else schema.
func dataOf(schema node) node {
	for _, part := range schema.at("allOf").items() {
		if data := part.at("properties", "data"); data.exists() {
			return data
		}
	}
	return schema
}

// schemas returns the schemas that have a name.
func schemas(contract node) (all []schema) {
	for _, e := range contract.at("components", "schemas").entries() {
		all = append(all, schema{e.key, typeOf(e.value), markdown(e.value.text("description")), properties(e.value)})
	}
	return all
}

// properties returns the properties of a schema, including those of the unnamed schemas in its allOf.
func properties(n node) (all []field) {
	required := map[string]bool{}
	for _, name := range n.texts("required") {
		required[name] = true
	}
	for _, p := range n.at("properties").entries() {
		all = append(all, field{Name: p.key, Required: required[p.key], Type: typeOf(p.value), Description: markdown(p.value.text("description"))})
	}
	for _, part := range n.at("allOf").items() {
		all = append(all, properties(part)...)
	}
	return all
}

// typeOf describes the values that a schema accepts, with links to the schemas that it refers to.
func typeOf(n node) template.HTML {
	if name := n.refName(); name != "" {
		return template.HTML(fmt.Sprintf(`<a href="#schema-%[1]s">%[1]s</a>`, template.HTMLEscapeString(name)))
	}
	for _, combination := range []struct{ key, separator string }{{"oneOf", " or "}, {"anyOf", " or "}, {"allOf", " with "}} {
		var parts []string
		for _, part := range n.at(combination.key).items() {
			if described := typeOf(part); described != "" {
				parts = append(parts, string(described))
			}
		}
		if len(parts) > 0 {
			return template.HTML(strings.Join(parts, combination.separator))
		}
	}
	if items := n.at("items"); items.exists() {
		return "list of " + typeOf(items)
	}
	types := n.texts("type") // a list, or a single type
	if single := n.text("type"); single != "" {
		types = []string{single}
	}
	var words []string
	if len(types) > 0 {
		words = append(words, template.HTMLEscapeString(strings.Join(types, " or ")))
	}
	if format := n.text("format"); format != "" {
		words = append(words, "("+template.HTMLEscapeString(format)+")")
	}
	words = append(words, limits(n)...)
	return template.HTML(strings.Join(words, " "))
}

// limits describes the constraints of a schema on its values, except their type.
func limits(n node) (words []string) {
	code := func(value node) string { return "<code>" + template.HTMLEscapeString(value.text()) + "</code>" }
	var values []string
	for _, value := range n.at("enum").items() {
		values = append(values, code(value))
	}
	if len(values) > 0 {
		words = append(words, strings.Join(values, ", "))
	}
	if value := n.at("const"); value.exists() {
		words = append(words, code(value))
	}
	for _, limit := range []struct{ key, format string }{
		{"minimum", "≥ %s"}, {"maximum", "≤ %s"}, {"minLength", "at least %s characters"}, {"maxLength", "at most %s characters"},
		{"minItems", "at least %s"}, {"maxItems", "at most %s"}, {"pattern", "matching <code>%s</code>"}, {"default", "default <code>%s</code>"},
	} {
		if value := n.text(limit.key); value != "" {
			words = append(words, fmt.Sprintf(limit.format, template.HTMLEscapeString(value)))
		}
	}
	return words
}
