package e2e

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What linters and generators of clients stumble over; make openapi runs these
// themselves.
func TestContractLint(t *testing.T) {
	t.Parallel()
	l := &contractLint{uses: map[string]bool{}}
	doc := readContract(t).doc
	for _, under := range []string{"paths", "webhooks"} {
		for route, item := range doc[under].(object) {
			for method, operation := range item.(object) {
				l.when(operation.(object)["description"] == nil, pointer(under, route, method), "has no description")
			}
		}
	}
	l.walk(doc, "")
	for _, kind := range slices.Sorted(maps.Keys(doc["components"].(object))) {
		for name := range doc["components"].(object)[kind].(object) {
			at := pointer("components", kind, name)
			l.when(kind != "securitySchemes" && !l.uses["#"+at], at, "is referenced nowhere")
		}
	}
	slices.Sort(l.problems)
	require.Empty(t, l.problems)
}

type contractLint struct {
	uses     map[string]bool // references
	problems []string
}

func (l *contractLint) when(is bool, at, problem string) {
	if is {
		l.problems = append(l.problems, at+" "+problem)
	}
}

// walk looks at every node but the values of examples.
func (l *contractLint) walk(node any, at string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			l.walk(child, at)
		}
	case object:
		if ref, ok := n["$ref"].(string); ok {
			l.uses[ref] = true
		}
		isProperty := path.Base(path.Dir(at)) == "properties"
		l.when(isProperty && n["default"] != nil, at, "has a default: generated clients then require the field")
		name := path.Base(at)
		l.when(isProperty && n["type"] == "integer" && (name == "id" || strings.HasSuffix(name, "_id")), at, "is an id that is not a string")
		l.when(n["type"] == "object" && n["properties"] == nil && n["additionalProperties"] == nil, at,
			"is an object without properties: generated clients cannot fill it")
		for name, child := range n {
			l.when(child == nil, at, "has the name "+name+" without a value: is a comma unquoted?")
			if name != "example" && name != "examples" {
				l.walk(child, at+pointer(name))
			}
		}
	}
}
