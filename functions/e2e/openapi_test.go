package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/api"
)

// object is a node of openapi.yaml.
type object = map[string]any

// contract is openapi.yaml with what it takes to hold calls to it.
type contract struct {
	doc        object
	operations map[string]place // by pattern, as "GET /healthz"
	mux        *http.ServeMux   // of the same patterns

	mu       sync.Mutex
	compiler *jsonschema.Compiler
}

// place is a node of the contract and where it stands, as a JSON pointer.
type place struct {
	node object
	at   string
}

func readContract(t testing.TB) *contract {
	t.Helper()
	var file any
	require.NoError(t, yaml.Unmarshal(api.OpenAPI(), &file))
	text, err := json.Marshal(file)
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := &contract{doc: parsed.(object), operations: map[string]place{}, mux: http.NewServeMux(), compiler: jsonschema.NewCompiler()}
	closeObjects(c.doc)
	c.compiler.AssertFormat()
	require.NoError(t, c.compiler.AddResource("openapi.json", c.doc))
	for route, item := range c.doc["paths"].(object) {
		for method, operation := range item.(object) {
			pattern := strings.ToUpper(method) + " " + route
			c.operations[pattern] = place{operation.(object), pointer("paths", route, method)}
			c.mux.Handle(pattern, http.NotFoundHandler())
		}
	}
	return c
}

// closeObjects refuses, wherever a schema is used, what it does not name. The
// file itself leaves answers open, so that a client bears new fields.
func closeObjects(node any) {
	switch n := node.(type) {
	case object:
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
			for _, part := range parts { // each sees only its share
				for _, grandchild := range part.(object) {
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

func pointer(names ...string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	at := ""
	for _, name := range names {
		at += "/" + escape.Replace(name)
	}
	return at
}

// child is the node below p, wherever a $ref leads. ok is false when there is
// none.
func (c *contract) child(p place, names ...string) (found place, ok bool) {
	for _, name := range names {
		node, ok := p.node[name].(object)
		if !ok {
			return place{}, false
		}
		p = c.follow(place{node, p.at + pointer(name)})
	}
	return p, true
}

func (c *contract) follow(p place) place {
	ref, ok := p.node["$ref"].(string)
	if !ok {
		return p
	}
	node := c.doc
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		node = node[name].(object)
	}
	return c.follow(place{node, strings.TrimPrefix(ref, "#")})
}

// parameters are those of the operation that stand in the path, the query or
// the header.
func (c *contract) parameters(operation place, in string) []object {
	var found []object
	list, _ := operation.node["parameters"].([]any)
	for _, item := range list {
		if p := c.follow(place{node: item.(object)}); p.node["in"] == in {
			found = append(found, p.node)
		}
	}
	return found
}

// check holds a value to the schema that stands at a place.
func (c *contract) check(schemaAt string, value any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	schema, err := c.compiler.Compile("openapi.json" + (&url.URL{Fragment: schemaAt}).String())
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

func (c *contract) checkJSON(schemaAt string, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return c.check(schemaAt, value)
}

// find gives the operation that r calls; without one, the answer that every
// such call gets.
func (c *contract) find(r *http.Request) (pattern string, operation, answer place) {
	name := "NoSuchPath"
	if path.Clean(r.URL.Path) == r.URL.Path {
		for _, method := range []string{r.Method, "GET", "POST", "PUT", "DELETE"} {
			_, pattern := c.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host})
			if pattern != "" && method == r.Method && method != http.MethodHead {
				return pattern, c.operations[pattern], place{}
			}
			if pattern != "" {
				name = "MethodNotAllowed"
			}
		}
	}
	answer, _ = c.child(place{c.doc, ""}, "x-other-responses", name)
	return "", place{}, answer
}

// words are the error words that an answer may have; "" for a success.
func (c *contract) words(answer place) []string {
	content, ok := c.child(answer, "content", "application/json")
	if !ok {
		return []string{""}
	}
	parts, _ := content.node["schema"].(object)["allOf"].([]any)
	var words []string
	for _, part := range parts {
		p, _ := c.child(place{node: part.(object)}, "properties", "error")
		list, _ := p.node["enum"].([]any)
		for _, word := range list {
			words = append(words, word.(string))
		}
	}
	if words == nil {
		return []string{""}
	}
	return words
}

// exampleCall is an operation's own example as a request.
func (c *contract) exampleCall(t *testing.T, base, pattern string) *http.Request {
	t.Helper()
	operation := c.operations[pattern]
	method, path, _ := strings.Cut(pattern, " ")
	for _, p := range c.parameters(operation, "path") {
		path = strings.ReplaceAll(path, fmt.Sprintf("{%s}", p["name"]), fmt.Sprint(p["example"]))
	}
	query := url.Values{}
	for _, p := range c.parameters(operation, "query") {
		if p["required"] == true {
			query.Set(p["name"].(string), fmt.Sprint(p["example"]))
		}
	}
	var body []byte
	if examples, ok := c.child(operation, "requestBody", "content", "application/json", "examples"); ok {
		for name := range examples.node { // any of them
			var err error
			body, err = json.Marshal(examples.node[name].(object)["value"])
			require.NoError(t, err)
			break
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, base+path+"?"+query.Encode(), bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for _, p := range c.parameters(operation, "header") {
		if name := p["name"].(string); strings.HasPrefix(name, "Ce-") {
			req.Header.Set(name, p["example"].(string))
		}
	}
	return req
}

// witness is a transport that fails the test when an exchange breaks the
// contract: a status, an error word, a header, a field or a type that
// openapi.yaml does not have, or a request that it would refuse and the
// service took.
type witness struct {
	t        testing.TB
	contract *contract

	mu   sync.Mutex
	seen map[string]bool // "GET /healthz 200", "POST /api/v1/sms/send 404 no_default_content"
}

func newWitness(t testing.TB) *witness {
	t.Helper()
	return &witness{t: t, contract: readContract(t), seen: map[string]bool{}}
}

// RoundTrip makes the call and holds both sides to the contract.
func (w *witness) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent bytes.Buffer
	if r.Body != nil && r.ContentLength < 1<<20 {
		r = r.Clone(r.Context())
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &sent), r.Body}
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if err := res.Body.Close(); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(got))
	for _, problem := range w.problems(r, sent.Bytes(), res, got) {
		w.t.Errorf("%s %s answered %d %s: %s", r.Method, r.URL, res.StatusCode, got, problem)
	}
	return res, nil
}

func (w *witness) problems(r *http.Request, sent []byte, res *http.Response, got []byte) (problems []string) {
	c := w.contract
	pattern, operation, answer := c.find(r)
	if pattern != "" {
		found, ok := c.child(operation, "responses", fmt.Sprint(res.StatusCode))
		if !ok {
			return []string{"the contract does not have this status"}
		}
		answer = found
		w.remember(pattern, res.StatusCode, got)
		if res.StatusCode/100 == 2 {
			problems = append(problems, c.requestProblems(operation, r, sent)...)
		}
	}
	problems = append(problems, c.headerProblems(answer, res.Header)...)
	if r.Method == http.MethodHead || res.StatusCode == http.StatusSwitchingProtocols {
		return problems // HTTP leaves its body out; after 101 come frames
	}
	return append(problems, c.bodyProblems(answer, res.Header, got)...)
}

func (w *witness) remember(pattern string, status int, got []byte) {
	var envelope api.Envelope
	_ = json.Unmarshal(got, &envelope) // what is no envelope has no word; bodyProblems judges it
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[strings.TrimSpace(fmt.Sprintf("%s %d %s", pattern, status, envelope.Error))] = true
}

// requestProblems returns what the contract would have refused of a request that
// the service took.
func (c *contract) requestProblems(operation place, r *http.Request, sent []byte) (problems []string) {
	query := r.URL.Query()
	named := map[string]bool{}
	for _, p := range c.parameters(operation, "query") {
		name := p["name"].(string)
		named[name] = true
		if p["required"] == true && !query.Has(name) {
			problems = append(problems, "parameter "+name+" is required")
		}
	}
	for name := range query {
		if !named[name] && operation.node["operationId"] != "claimByPost" {
			problems = append(problems, "the contract does not have the parameter "+name)
		}
	}
	body, taken := c.child(operation, "requestBody")
	switch {
	case len(sent) == 0 && taken && body.node["required"] == true:
		problems = append(problems, "a body is required")
	case len(sent) > 0 && taken:
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		content, known := c.child(body, "content", kind)
		if err != nil || !known {
			return append(problems, "the contract does not take the Content-Type of the request")
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(sent))
		if fields, ok := value.(object); ok {
			maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil }) // null is absent
		}
		if err = cmp.Or(err, c.check(content.at+"/schema", value)); err != nil {
			problems = append(problems, fmt.Sprintf("the contract refuses the request %s: %v", sent, err))
		}
	}
	return problems
}

// headerProblems holds the headers that mean something to the contract.
func (c *contract) headerProblems(answer place, header http.Header) (problems []string) {
	listed, _ := answer.node["headers"].(object)
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		h, _ := c.child(answer, "headers", name)
		value := header.Get(name)
		switch {
		case value == "" && h.node["required"] == true:
			problems = append(problems, "header "+name+" is required")
		case value != "":
			if err := c.check(h.at+"/schema", value); err != nil {
				problems = append(problems, fmt.Sprintf("header %s: %v", name, err))
			}
		}
	}
	for _, name := range []string{"Location", "Idempotency-Replayed", "Retry-After", "WWW-Authenticate", "Allow"} {
		if _, known := listed[name]; !known && header.Get(name) != "" {
			problems = append(problems, "the contract does not have the header "+name)
		}
	}
	return problems
}

func (c *contract) bodyProblems(answer place, header http.Header, got []byte) []string {
	if _, has := answer.node["content"]; !has {
		if len(got) > 0 {
			return []string{"the contract has no body here"}
		}
		return nil
	}
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	content, known := c.child(answer, "content", kind)
	if err != nil || !known || cmp.Or(params["charset"], "utf-8") != "utf-8" {
		return []string{"the contract does not have this Content-Type: " + header.Get("Content-Type")}
	}
	if strings.HasPrefix(kind, "text/") { // is no JSON as a whole
		err = c.check(content.at+"/schema", string(got))
	} else {
		err = c.checkJSON(content.at+"/schema", got)
	}
	if err != nil {
		return []string{err.Error()}
	}
	return nil
}
