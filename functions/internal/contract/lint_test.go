package contract

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContractHasNoLintProblems finds what linters and client generators reject. make openapi runs the linters and generators.
func TestContractHasNoLintProblems(t *testing.T) {
	t.Parallel()
	l := &lint{referenced: map[string]bool{}}
	doc := Read(t).Doc
	for _, under := range []string{"paths", "webhooks"} {
		for route, item := range doc[under].(Object) {
			for method, operation := range item.(Object) {
				l.addIf(operation.(Object)["description"] == nil, Pointer(under, route, method), "has no description")
			}
		}
	}
	l.walk(doc, "")
	for _, kind := range slices.Sorted(maps.Keys(doc["components"].(Object))) {
		for name := range doc["components"].(Object)[kind].(Object) {
			at := Pointer("components", kind, name)
			l.addIf(kind != "securitySchemes" && !l.referenced["#"+at], at, "is referenced nowhere")
		}
	}
	slices.Sort(l.problems)
	require.Empty(t, l.problems)
}

type lint struct {
	referenced map[string]bool // the values of $ref
	problems   []string
}

func (l *lint) addIf(isProblem bool, at, problem string) {
	if isProblem {
		l.problems = append(l.problems, at+" "+problem)
	}
}

// walk checks every node except the values of examples.
func (l *lint) walk(node any, at string) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			l.walk(child, at)
		}
	case Object:
		if ref, ok := n["$ref"].(string); ok {
			l.referenced[ref] = true
		}
		isProperty := path.Base(path.Dir(at)) == "properties"
		l.addIf(isProperty && n["default"] != nil, at, "has a default: generated clients then require the field")
		name := path.Base(at)
		l.addIf(isProperty && n["type"] == "integer" && (name == "id" || strings.HasSuffix(name, "_id")), at, "is an id that is not a string")
		l.addIf(n["type"] == "object" && n["properties"] == nil && n["additionalProperties"] == nil, at,
			"is an object without properties: generated clients cannot fill it")
		for name, child := range n {
			l.addIf(child == nil, at, "has the name "+name+" without a value: is a comma unquoted?")
			if name != "example" && name != "examples" {
				l.walk(child, at+Pointer(name))
			}
		}
	}
}
