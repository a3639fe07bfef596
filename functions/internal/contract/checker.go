package contract

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sendonce/sendonce/shared/api"
)

// Checker is an http.RoundTripper that fails the test if a call breaks the contract: the response has a status, an
// error code, a header, a field or a type that openapi.yaml does not have, or the service accepts a request that
// openapi.yaml forbids.
type Checker struct {
	t        testing.TB
	Contract *Contract

	mu   sync.Mutex
	Seen map[string]bool // the responses so far, such as "GET /healthz 200", "POST /api/v1/sms/send 404 no_default_content"
}

// NewChecker returns a Checker that has seen no response.
func NewChecker(t testing.TB) *Checker {
	t.Helper()
	return &Checker{t: t, Contract: Read(t), Seen: map[string]bool{}}
}

// RoundTrip makes the call and checks its request and its response.
func (k *Checker) RoundTrip(r *http.Request) (*http.Response, error) {
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
	for _, problem := range k.Problems(r, sent.Bytes(), res, got) {
		k.t.Errorf("%s %s returned %d %s: %s", r.Method, r.URL, res.StatusCode, got, problem)
	}
	return res, nil
}

// Problems returns how a call breaks the contract, and records its response in Seen if the contract has the status.
func (k *Checker) Problems(r *http.Request, sent []byte, res *http.Response, got []byte) (problems []string) {
	c := k.Contract
	pattern, operation, response := c.find(r)
	if pattern != "" {
		found, ok := c.Child(operation, "responses", fmt.Sprint(res.StatusCode))
		if !ok {
			return []string{"the contract does not have this status"}
		}
		response = found
		k.remember(pattern, res.StatusCode, got)
		if res.StatusCode/100 == 2 {
			problems = append(problems, c.requestProblems(operation, r, sent)...)
		}
	}
	problems = append(problems, c.headerProblems(response, res.Header)...)
	if r.Method == http.MethodHead || res.StatusCode == http.StatusSwitchingProtocols {
		return problems // HEAD has no body, and frames follow 101
	}
	return append(problems, c.bodyProblems(response, res.Header, got)...)
}

// remember records a response in Seen.
func (k *Checker) remember(pattern string, status int, got []byte) {
	var envelope api.Envelope
	_ = json.Unmarshal(got, &envelope) // bodyProblems reports a body that is not an envelope
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Seen[strings.TrimSpace(fmt.Sprintf("%s %d %s", pattern, status, envelope.Error))] = true
}

// requestProblems returns how a request that the service accepted breaks the contract.
func (c *Contract) requestProblems(operation NodeAt, r *http.Request, sent []byte) (problems []string) {
	query := r.URL.Query()
	listed := map[string]bool{}
	for _, p := range c.Parameters(operation, "query") {
		name := p["name"].(string)
		listed[name] = true
		if p["required"] == true && !query.Has(name) {
			problems = append(problems, "parameter "+name+" is required")
		}
	}
	for name := range query {
		if !listed[name] && operation.Node["operationId"] != "claimByPost" { // POST accepts the parameters of GET too
			problems = append(problems, "the contract does not have the parameter "+name)
		}
	}
	body, hasBody := c.Child(operation, "requestBody")
	switch {
	case len(sent) == 0 && hasBody && body.Node["required"] == true:
		problems = append(problems, "a body is required")
	case len(sent) > 0 && hasBody:
		mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		content, known := c.Child(body, "content", mediaType)
		if err != nil || !known {
			return append(problems, "the contract does not have the Content-Type of the request")
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(sent))
		if fields, ok := value.(Object); ok {
			maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil }) // null means absent
		}
		if err = cmp.Or(err, c.Check(content.Pointer+"/schema", value)); err != nil {
			problems = append(problems, fmt.Sprintf("the contract refuses the request %s: %v", sent, err))
		}
	}
	return problems
}

// headerProblems checks the headers that the contract lists for a response, and reports Location, Retry-After and similar
// headers that the contract does not list.
func (c *Contract) headerProblems(response NodeAt, header http.Header) (problems []string) {
	listed, _ := response.Node["headers"].(Object)
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		h, _ := c.Child(response, "headers", name)
		value := header.Get(name)
		switch {
		case value == "" && h.Node["required"] == true:
			problems = append(problems, "header "+name+" is required")
		case value != "":
			if err := c.Check(h.Pointer+"/schema", value); err != nil {
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

// bodyProblems checks the body and the Content-Type of a response.
func (c *Contract) bodyProblems(response NodeAt, header http.Header, got []byte) []string {
	if _, has := response.Node["content"]; !has {
		if len(got) > 0 {
			return []string{"the contract has no body here"}
		}
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	content, known := c.Child(response, "content", mediaType)
	if err != nil || !known || cmp.Or(params["charset"], "utf-8") != "utf-8" {
		return []string{"the contract does not have this Content-Type: " + header.Get("Content-Type")}
	}
	if strings.HasPrefix(mediaType, "text/") { // not JSON
		err = c.Check(content.Pointer+"/schema", string(got))
	} else {
		err = c.CheckJSON(content.Pointer+"/schema", got)
	}
	if err != nil {
		return []string{err.Error()}
	}
	return nil
}
