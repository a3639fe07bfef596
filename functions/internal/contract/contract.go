// Package contract checks calls, examples and types against openapi.yaml, for the tests of the functions.
package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/api"
)

// Object is a JSON object of openapi.yaml.
type Object = map[string]any

// Contract is openapi.yaml, parsed and compiled. All tests of a process share it.
type Contract struct {
	Doc        Object
	Operations map[string]NodeAt // by pattern, such as "GET /healthz"
	mux        *http.ServeMux    // finds the pattern of a request

	mu       sync.Mutex
	compiler *jsonschema.Compiler
}

// NodeAt is an object of openapi.yaml with its JSON pointer.
type NodeAt struct {
	Node    Object
	Pointer string
}

// PathValues replaces the parameters of a pattern by valid values.
var PathValues = strings.NewReplacer(
	"{task_id}", "0198c0de-0000-7000-8000-000000000001", "{id}", "1", "{key}", "order-4711", "{client_msg_id}", "order-4711",
	"{queue}", "default", "{user}", "ann", "{template_id}", "t1",
)

// Read returns the contract, which must not be changed.
func Read(t testing.TB) *Contract {
	t.Helper()
	c, err := read()
	require.NoError(t, err)
	return c
}

var read = sync.OnceValues(func() (*Contract, error) {
	var file any
	if err := yaml.Unmarshal(api.OpenAPI(), &file); err != nil {
		return nil, err
	}
	text, err := json.Marshal(file)
	if err != nil {
		return nil, err
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := &Contract{Doc: parsed.(Object), Operations: map[string]NodeAt{}, mux: http.NewServeMux(), compiler: jsonschema.NewCompiler()}
	closeObjects(c.Doc)
	c.compiler.AssertFormat()
	for route, item := range c.Doc["paths"].(Object) {
		for method, operation := range item.(Object) {
			pattern := strings.ToUpper(method) + " " + route
			c.Operations[pattern] = NodeAt{operation.(Object), Pointer("paths", route, method)}
			c.mux.Handle(pattern, http.NotFoundHandler())
		}
	}
	return c, c.compiler.AddResource("openapi.json", c.Doc)
})

// closeObjects makes every reference to a schema, and every allOf, refuse unknown fields. openapi.yaml allows unknown
// fields, so that clients accept new ones.
func closeObjects(node any) {
	switch n := node.(type) {
	case Object:
		ref, _ := n["$ref"].(string)
		if _, composed := n["allOf"]; composed || strings.HasPrefix(ref, "#/components/schemas/") {
			n["unevaluatedProperties"] = false
		}
		for name, child := range n {
			parts, isList := child.([]any)
			if name != "allOf" || !isList {
				closeObjects(child)
				continue
			}
			for _, part := range parts { // a part itself stays open: it has only some of the fields
				for _, grandchild := range part.(Object) {
					closeObjects(grandchild)
				}
			}
		}
	case []any:
		for _, child := range n {
			closeObjects(child)
		}
	}
}

// Pointer returns the JSON pointer of the names.
func Pointer(names ...string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	at := ""
	for _, name := range names {
		at += "/" + escape.Replace(name)
	}
	return at
}

// Child returns the object at the path of names below p, with each $ref followed; ok is false if there is none.
func (c *Contract) Child(p NodeAt, names ...string) (found NodeAt, ok bool) {
	for _, name := range names {
		node, ok := p.Node[name].(Object)
		if !ok {
			return NodeAt{}, false
		}
		p = c.Follow(NodeAt{node, p.Pointer + Pointer(name)})
	}
	return p, true
}

// Follow returns the object to which the $ref of p points, or p itself if p has no $ref.
func (c *Contract) Follow(p NodeAt) NodeAt {
	ref, ok := p.Node["$ref"].(string)
	if !ok {
		return p
	}
	node := c.Doc
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		node = node[name].(Object)
	}
	return c.Follow(NodeAt{node, strings.TrimPrefix(ref, "#")})
}

// Parameters returns the parameters of an operation that are in the "path", the "query" or a "header".
func (c *Contract) Parameters(operation NodeAt, in string) []Object {
	var found []Object
	list, _ := operation.Node["parameters"].([]any)
	for _, item := range list {
		if p := c.Follow(NodeAt{Node: item.(Object)}); p.Node["in"] == in {
			found = append(found, p.Node)
		}
	}
	return found
}

// Check validates a value against the schema at a JSON pointer.
func (c *Contract) Check(schemaAt string, value any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	schema, err := c.compiler.Compile("openapi.json" + (&url.URL{Fragment: schemaAt}).String())
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// CheckJSON parses a JSON text and calls Check.
func (c *Contract) CheckJSON(schemaAt string, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return c.Check(schemaAt, value)
}

// find returns the operation that r calls. If there is none, it returns the response of x-other-responses to unknown paths or
// methods.
func (c *Contract) find(r *http.Request) (pattern string, operation, response NodeAt) {
	name := "NoSuchPath"
	if path.Clean(r.URL.Path) == r.URL.Path {
		for _, method := range []string{r.Method, "GET", "POST", "PUT", "DELETE"} {
			_, pattern := c.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host})
			// The mux finds the route of GET for a HEAD; Sendonce does not serve HEAD there.
			if pattern != "" && method == r.Method && method != http.MethodHead {
				return pattern, c.Operations[pattern], NodeAt{}
			}
			if pattern != "" {
				name = "MethodNotAllowed"
			}
		}
	}
	response, _ = c.Child(NodeAt{c.Doc, ""}, "x-other-responses", name)
	return "", NodeAt{}, response
}

// ErrorCodes returns the error codes that a response may have. If the contract lists none, as for a success, it returns
// one code, "".
func (c *Contract) ErrorCodes(response NodeAt) []string {
	content, ok := c.Child(response, "content", "application/json")
	if !ok {
		return []string{""}
	}
	parts, _ := content.Node["schema"].(Object)["allOf"].([]any)
	var codes []string
	for _, part := range parts {
		p, _ := c.Child(NodeAt{Node: part.(Object)}, "properties", "error")
		list, _ := p.Node["enum"].([]any)
		for _, code := range list {
			codes = append(codes, code.(string))
		}
	}
	if codes == nil {
		return []string{""}
	}
	return codes
}

// ExampleCall returns a request with the examples of an operation's parameters, and with one of the examples of its
// body. Optional parameters of the query are left out, and all headers except Ce-*.
func (c *Contract) ExampleCall(t *testing.T, base, pattern string) *http.Request {
	t.Helper()
	operation := c.Operations[pattern]
	method, path, _ := strings.Cut(pattern, " ")
	for _, p := range c.Parameters(operation, "path") {
		path = strings.ReplaceAll(path, fmt.Sprintf("{%s}", p["name"]), fmt.Sprint(p["example"]))
	}
	query := url.Values{}
	for _, p := range c.Parameters(operation, "query") {
		if p["required"] == true {
			query.Set(p["name"].(string), fmt.Sprint(p["example"]))
		}
	}
	var body []byte
	if examples, ok := c.Child(operation, "requestBody", "content", "application/json", "examples"); ok {
		for name := range examples.Node { // one of them
			var err error
			body, err = json.Marshal(examples.Node[name].(Object)["value"])
			require.NoError(t, err)
			break
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, base+path+"?"+query.Encode(), bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for _, p := range c.Parameters(operation, "header") {
		if name := p["name"].(string); strings.HasPrefix(name, "Ce-") {
			req.Header.Set(name, p["example"].(string))
		}
	}
	return req
}
