package e2e

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

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestContractHasExactlyTheRoutes(t *testing.T) {
	t.Parallel()
	env, err := fn.NewEnv(fn.Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey}, sandbox.Log(t))
	require.NoError(t, err)
	defer env.Close()
	roles, err := fn.Patterns(env, functions.Catalogue()...)
	require.NoError(t, err)
	want := map[string][]any{"GET /healthz": nil, "GET /readyz": nil, "GET /metrics": nil}
	for pattern, some := range roles {
		for _, role := range some {
			want[pattern] = append(want[pattern], string(role))
		}
	}
	got := map[string][]any{}
	for pattern, operation := range readContract(t).operations {
		got[pattern], _ = operation.node["x-roles"].([]any)
	}
	require.Equal(t, want, got, "pattern -> roles; the catalogue is what is expected")
}

func TestContractOperationIDsAndPathParameters(t *testing.T) {
	t.Parallel()
	c := readContract(t)
	ids := map[any]string{}
	for pattern, operation := range c.operations {
		id := operation.node["operationId"]
		require.NotEmpty(t, operation.node["summary"], pattern)
		require.NotEmpty(t, id, pattern)
		require.Empty(t, ids[id], "%s and %s are both named %s", ids[id], pattern, id)
		ids[id] = pattern
		var inPath, declared []string
		for part := range strings.SplitSeq(pattern, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				inPath = append(inPath, strings.TrimSuffix(name, "}"))
			}
		}
		for _, p := range c.parameters(operation, "path") {
			declared = append(declared, p["name"].(string))
		}
		require.Equal(t, inPath, declared, pattern)
	}
}

func TestContractExamplesMatchTheirSchemas(t *testing.T) {
	t.Parallel()
	c := readContract(t)
	for _, pattern := range slices.Sorted(maps.Keys(c.operations)) {
		operation := c.operations[pattern]
		if body, ok := c.child(operation, "requestBody"); ok {
			checkExamples(t, c, body, pattern)
		}
		for status := range operation.node["responses"].(object) {
			answer, _ := c.child(operation, "responses", status)
			if _, has := answer.node["content"]; has {
				checkExamples(t, c, answer, pattern+" "+status)
			}
		}
	}
	for name := range c.doc["webhooks"].(object) {
		body, ok := c.child(place{c.doc, ""}, "webhooks", name, "post", "requestBody")
		require.True(t, ok, name)
		checkExamples(t, c, body, "webhook "+name)
	}
	for _, name := range []string{"NoSuchPath", "MethodNotAllowed"} {
		answer, ok := c.child(place{c.doc, ""}, "x-other-responses", name)
		require.True(t, ok, name)
		checkExamples(t, c, answer, name)
	}
	parameters, _ := c.child(place{c.doc, ""}, "components", "parameters")
	for name := range parameters.node {
		p, _ := c.child(parameters, name)
		if example, has := p.node["example"]; has {
			require.NoError(t, c.check(p.at+"/schema", example), name)
		}
	}
}

func checkExamples(t *testing.T, c *contract, body place, what string) {
	t.Helper()
	for kind := range body.node["content"].(object) {
		content, _ := c.child(body, "content", kind)
		examples, _ := content.node["examples"].(object)
		require.NotEmpty(t, examples, "%s has no example", what)
		for name, example := range examples {
			require.NoError(t, c.check(content.at+"/schema", example.(object)["value"]), "%s: example %s", what, name)
		}
	}
}

// inQuery gives the types that stand in a query string, by their operations.
func inQuery() map[string]string {
	return map[string]string{
		"claim": "ClaimRequest", "listTemplates": "TemplatesRequest", "listDefaults": "DefaultSMSListRequest", "listTasks": "TasksRequest", "taskHistory": "AdminTaskRequest",
		"listBlockedWords": "ListRequest", "listCallers": "ListRequest", "listActions": "ActionsRequest",
		"messageByKey": "MessageByKeyRequest", "listStuckMessages": "StuckRequest", "conversation": "ConversationRequest", "listPeers": "PeersRequest",
		"stream":        "StreamRequest",
		"subscribeSent": "SubscribeSentRequest", "listSubscribeLogs": "SubscribeLogsRequest", "listSubscribeFailures": "SubscribeFailuresRequest", "subscribeLog": "SubscribeDetailRequest",
		"subscribeStatistics":    "SubscribeStatisticsRequest",
		"listSubscribeTemplates": "SubscribeTemplatesRequest", "listQueues": "QueuesRequest",
		"listEndpoints": "EndpointsRequest", "listDeliveries": "DeliveriesRequest", "listDeadLetters": "ListRequest", "listAlerts": "AlertsRequest",
	}
}

func TestContractSchemasMatchAPITypes(t *testing.T) {
	t.Parallel()
	c := readContract(t)
	structs := apiStructs(t)
	schemas := c.doc["components"].(object)["schemas"].(object)
	described := slices.Collect(maps.Values(inQuery()))
	for name, fields := range structs {
		schema, ok := schemas[name].(object)
		if !ok {
			require.Contains(t, described, name, "type %s has neither a schema nor a query string", name)
			continue
		}
		want := byName(fields)
		// The client must distinguish an empty list from none.
		if name == "CallerChange" {
			for _, list := range []string{"queues", "business_types", "receives"} {
				want[list] = property{kind: want[list].kind}
			}
		}
		require.Equal(t, want, c.properties(schema), "type %s and its schema", name)
	}
	ofOthers := []string{"CloudEvent", "Health", "TaskResults"} // the last is a part of two schemas that have types
	for name, schema := range schemas {
		_, isObject := schema.(object)["properties"]
		require.True(t, !isObject || structs[name] != nil || slices.Contains(ofOthers, name), "schema %s has no type", name)
	}
	for pattern, operation := range c.operations {
		name := inQuery()[operation.node["operationId"].(string)]
		got := map[string]property{}
		for _, p := range c.parameters(operation, "query") {
			got[p["name"].(string)] = property{kind: c.kindOf(p["schema"].(object)), required: p["required"] == true}
		}
		require.Equal(t, byName(structs[name]), got, "type %s and the parameters of %s", name, pattern)
	}
}

// property is what a field of a type and of a schema must share. kind is a JSON
// type, "time", "[]" before the kind of a list's items, or "any".
type property struct {
	kind               string
	required, nullable bool
}

// properties are those of an object schema, composed or not.
func (c *contract) properties(schema object) map[string]property {
	all := map[string]property{}
	parts, _ := schema["allOf"].([]any)
	for _, part := range parts {
		maps.Copy(all, c.properties(c.follow(place{node: part.(object)}).node))
	}
	required, _ := schema["required"].([]any)
	own, _ := schema["properties"].(object)
	for name, p := range own {
		kinds, _ := p.(object)["type"].([]any)
		all[name] = property{
			kind:     c.kindOf(p.(object)),
			required: slices.Contains(required, any(name)),
			nullable: slices.Contains(kinds, any("null")),
		}
	}
	return all
}

func (c *contract) kindOf(schema object) string {
	schema = c.follow(place{node: schema}).node
	kind, _ := schema["type"].(string)
	if kinds, _ := schema["type"].([]any); len(kinds) > 0 {
		kind = kinds[0].(string)
	}
	switch {
	case kind == "array":
		return "[]" + c.kindOf(schema["items"].(object))
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

// apiStructs reads the types of the wire from their source, so that none can be
// forgotten here.
func apiStructs(t *testing.T) map[string][]field {
	t.Helper()
	files, err := filepath.Glob("../../shared/api/*.go")
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

// fieldsOf gives the fields with a json tag, those of embedded types included.
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
			return "[]any" // items that are judged one by one
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
