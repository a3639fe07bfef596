package contract

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOperationIDsAreUniqueAndPathParametersDeclared(t *testing.T) {
	t.Parallel()
	c := Read(t)
	ids := map[any]string{}
	for pattern, operation := range c.Operations {
		id := operation.Node["operationId"]
		require.NotEmpty(t, operation.Node["summary"], pattern)
		require.NotEmpty(t, id, pattern)
		require.Empty(t, ids[id], "%s and %s are both named %s", ids[id], pattern, id)
		ids[id] = pattern
		var inPath, declared []string
		for part := range strings.SplitSeq(pattern, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				inPath = append(inPath, strings.TrimSuffix(name, "}"))
			}
		}
		for _, p := range c.Parameters(operation, "path") {
			declared = append(declared, p["name"].(string))
		}
		require.Equal(t, inPath, declared, pattern)
	}
}

func TestExamplesMatchTheirSchemas(t *testing.T) {
	t.Parallel()
	c := Read(t)
	for _, pattern := range slices.Sorted(maps.Keys(c.Operations)) {
		operation := c.Operations[pattern]
		if body, ok := c.Child(operation, "requestBody"); ok {
			checkExamples(t, c, body, pattern)
		}
		for status := range operation.Node["responses"].(Object) {
			response, _ := c.Child(operation, "responses", status)
			if _, has := response.Node["content"]; has {
				checkExamples(t, c, response, pattern+" "+status)
			}
		}
	}
	for name := range c.Doc["webhooks"].(Object) {
		body, ok := c.Child(NodeAt{c.Doc, ""}, "webhooks", name, "post", "requestBody")
		require.True(t, ok, name)
		checkExamples(t, c, body, "webhook "+name)
	}
	for _, name := range []string{"NoSuchPath", "MethodNotAllowed"} {
		response, ok := c.Child(NodeAt{c.Doc, ""}, "x-other-responses", name)
		require.True(t, ok, name)
		checkExamples(t, c, response, name)
	}
	parameters, _ := c.Child(NodeAt{c.Doc, ""}, "components", "parameters")
	for name := range parameters.Node {
		p, _ := c.Child(parameters, name)
		if example, has := p.Node["example"]; has {
			require.NoError(t, c.Check(p.Pointer+"/schema", example), name)
		}
	}
}

func checkExamples(t *testing.T, c *Contract, body NodeAt, where string) {
	t.Helper()
	for kind := range body.Node["content"].(Object) {
		content, _ := c.Child(body, "content", kind)
		examples, _ := content.Node["examples"].(Object)
		require.NotEmpty(t, examples, "%s has no example", where)
		for name, example := range examples {
			require.NoError(t, c.Check(content.Pointer+"/schema", example.(Object)["value"]), "%s: example %s", where, name)
		}
	}
}

// queryTypes returns, by operationId, the API type of the query parameters.
func queryTypes() map[string]string {
	return map[string]string{
		"claim": "ClaimRequest", "listTemplates": "TemplatesRequest", "listDefaults": "DefaultSMSListRequest", "listTasks": "TasksRequest", "taskHistory": "AdminTaskRequest",
		"listBlockedWords": "ListRequest", "listCallers": "ListRequest", "callerNames": "CallerNamesRequest", "listActions": "ActionsRequest", "search": "SearchRequest", "listBulk": "BulkListRequest",
		"messageByKey": "MessageByKeyRequest", "listStuckMessages": "StuckRequest", "conversation": "ConversationRequest", "listPeers": "PeersRequest",
		"stream":        "StreamRequest",
		"subscribeSent": "SubscribeSentRequest", "listSubscribeLogs": "SubscribeLogsRequest", "listSubscribeMessages": "SubscribeListRequest", "listSubscribeFailures": "SubscribeFailuresRequest", "subscribeLog": "SubscribeDetailRequest",
		"subscribeStatistics":    "SubscribeStatisticsRequest",
		"listSubscribeTemplates": "SubscribeTemplatesRequest", "listQueues": "QueuesRequest",
		"listEndpoints": "EndpointsRequest", "listDeliveries": "DeliveriesRequest", "listDeadLetters": "ListRequest", "listAlerts": "AlertsRequest",
	}
}

func TestSchemasMatchAPITypes(t *testing.T) {
	t.Parallel()
	c := Read(t)
	structs := apiStructs(t)
	schemas := c.Doc["components"].(Object)["schemas"].(Object)
	queries := slices.Collect(maps.Values(queryTypes()))
	for name, fields := range structs {
		schema, ok := schemas[name].(Object)
		if !ok {
			require.Contains(t, queries, name, "Go type %s has no schema and is not in queryTypes", name)
			continue
		}
		want := byName(fields)
		// In the schema these lists are optional: a change without a list keeps it. The type has no omitempty, so that the Go client
		// can send an empty list.
		if name == "CallerChange" {
			for _, list := range []string{"queues", "business_types", "receives"} {
				want[list] = property{kind: want[list].kind}
			}
		}
		require.Equal(t, want, c.properties(schema), "type %s and its schema", name)
	}
	withoutType := []string{"CloudEvent", "Health", "TaskResults"} // TaskResults is in allOf of two schemas that have types
	for name, schema := range schemas {
		_, isObject := schema.(Object)["properties"]
		require.True(t, !isObject || structs[name] != nil || slices.Contains(withoutType, name), "schema %s has no Go type in package api", name)
	}
	for pattern, operation := range c.Operations {
		name := queryTypes()[operation.Node["operationId"].(string)]
		got := map[string]property{}
		for _, p := range c.Parameters(operation, "query") {
			got[p["name"].(string)] = property{kind: c.kindOf(p["schema"].(Object)), required: p["required"] == true}
		}
		require.Equal(t, byName(structs[name]), got, "type %s and the parameters of %s", name, pattern)
	}
}

// property has what must be the same for a field of an API type and for its schema. kind is a JSON type, "time" or
// "any"; for a list it is "[]" followed by the kind of the items.
type property struct {
	kind               string
	required, nullable bool
}

// properties returns the properties of an object schema and of the schemas in its allOf.
func (c *Contract) properties(schema Object) map[string]property {
	all := map[string]property{}
	parts, _ := schema["allOf"].([]any)
	for _, part := range parts {
		maps.Copy(all, c.properties(c.Follow(NodeAt{Node: part.(Object)}).Node))
	}
	required, _ := schema["required"].([]any)
	own, _ := schema["properties"].(Object)
	for name, p := range own {
		kinds, _ := p.(Object)["type"].([]any)
		all[name] = property{
			kind:     c.kindOf(p.(Object)),
			required: slices.Contains(required, any(name)),
			nullable: slices.Contains(kinds, any("null")),
		}
	}
	return all
}

func (c *Contract) kindOf(schema Object) string {
	schema = c.Follow(NodeAt{Node: schema}).Node
	kind, _ := schema["type"].(string)
	if kinds, _ := schema["type"].([]any); len(kinds) > 0 {
		kind = kinds[0].(string)
	}
	switch {
	case kind == "array":
		return "[]" + c.kindOf(schema["items"].(Object))
	case schema["format"] == "date-time":
		return "time"
	case schema["allOf"] != nil:
		return "object"
	case kind == "":
		return "any"
	}
	return kind
}

type field struct {
	name string
	property
}

func byName(fields []field) map[string]property {
	properties := map[string]property{}
	for _, f := range fields {
		properties[f.name] = f.property
	}
	return properties
}

// apiStructs returns the fields of every exported struct of package api with json tags, by name. It parses the source, so that no
// new type is missed.
func apiStructs(t *testing.T) map[string][]field {
	t.Helper()
	files, err := filepath.Glob("../../../shared/api/*.go")
	require.NoError(t, err)
	declared := map[string]*ast.StructType{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
				if s, ok := spec.Type.(*ast.StructType); ok {
					declared[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	structs := map[string][]field{}
	for name, s := range declared {
		if fields := fieldsOf(s, declared); len(fields) > 0 {
			structs[name] = fields
		}
	}
	return structs
}

// fieldsOf returns the fields with a json tag, including those of embedded types.
func fieldsOf(s *ast.StructType, declared map[string]*ast.StructType) (fields []field) {
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 {
			fields = append(fields, fieldsOf(declared[f.Type.(*ast.Ident).Name], declared)...)
			continue
		}
		if f.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
		name, options, _ := strings.Cut(tag, ",")
		_, pointer := f.Type.(*ast.StarExpr)
		optional := options == "omitempty"
		fields = append(fields, field{name, property{kind: goKind(f.Type, declared), required: !optional, nullable: pointer && !optional}})
	}
	return fields
}

func goKind(e ast.Expr, declared map[string]*ast.StructType) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return goKind(e.X, declared)
	case *ast.ArrayType:
		if item, ok := e.Elt.(*ast.SelectorExpr); ok && item.Sel.Name == "RawMessage" {
			return "[]any" // each item is decoded separately
		}
		return "[]" + goKind(e.Elt, declared)
	case *ast.MapType:
		return "object"
	case *ast.SelectorExpr:
		return map[string]string{"time.Time": "time", "json.RawMessage": "object"}[fmt.Sprintf("%s.%s", e.X, e.Sel)]
	case *ast.Ident:
		if declared[e.Name] != nil {
			return "object"
		}
		kinds := map[string]string{"string": "string", "int": "integer", "int32": "integer", "int64": "integer", "float64": "number", "bool": "boolean", "Number": "string", "ID": "string"}
		if kind, ok := kinds[e.Name]; ok {
			return kind
		}
	}
	return "any"
}
