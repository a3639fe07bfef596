package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
)

// The limits and enums of openapi.yaml must be those of the code. For each limit of a field, the test makes a call with
// a value beyond the limit, and calls with allowed values. The call beyond the limit must get an error for the field
// that the other calls do not get. Other errors do not matter.
func TestContractLimitsAreThoseOfTheService(t *testing.T) {
	t.Parallel()
	s, c := cluster.Serve(t), contract.Read(t)
	checked := 0
	for _, pattern := range slices.Sorted(maps.Keys(c.Operations)) {
		operation := c.Operations[pattern]
		if strings.Contains(pattern, "/events/") || strings.Contains(pattern, "/stream/") {
			continue // only the trigger posts events, and streams do not end
		}
		body := map[string]any{}
		example := c.ExampleCall(t, s.URL, pattern)
		if example.ContentLength > 0 {
			text, err := io.ReadAll(example.Body)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &body))
		}
		inBody := func(name string, value any) []string {
			changed := maps.Clone(body)
			delete(changed, "app_id") // without it, a claim is refused and does not wait
			changed[name] = value
			text, err := json.Marshal(changed)
			require.NoError(t, err)
			return fieldErrors(s, example, example.URL.RawQuery, string(text), name)
		}
		inQuery := func(name string, value any) []string {
			query := example.URL.Query()
			query.Del("app_id")
			query.Set(name, fmt.Sprint(value))
			return fieldErrors(s, example, query.Encode(), "", name)
		}
		check := func(name string, schema contract.Object, call func(string, any) []string) {
			for _, l := range limits(name, schema) {
				if skippedFields[pattern+" "+name] {
					continue
				}
				checked++
				errorsBeyond := call(name, l.beyond)
				for _, within := range l.within {
					assert.NotSubset(t, call(name, within), errorsBeyond, "%s: %s: %.60v is refused like %.60v, or both are accepted", pattern, name, within, l.beyond)
				}
			}
		}
		if schema, ok := c.Child(operation, "requestBody", "content", "application/json", "schema"); ok {
			properties, _ := schema.Node["properties"].(contract.Object)
			for name := range properties {
				property, _ := c.Child(schema, "properties", name)
				check(name, property.Node, inBody)
			}
		}
		for _, p := range c.Parameters(operation, "query") {
			schema, _ := c.Child(contract.NodeAt{Node: p}, "schema")
			check(p["name"].(string), schema.Node, inQuery)
		}
	}
	require.Greater(t, checked, 100)
}

// skippedFields are fields whose limits this test cannot check.
var skippedFields = map[string]bool{
	"POST /api/v1/admin/template/{id}/preview template_content": true, // every value is refused: the template of the path is previewed
	"POST /api/v1/sms/send content":                             true, // openapi.yaml has the limit of parameters, 4000 characters; that of a text is 200
}

// limit is a limit of a field, or an enum: values that it allows, and a value that it does not allow.
type limit struct {
	within []any
	beyond any
}

// limits returns the limits in the schema of a field.
func limits(name string, schema contract.Object) (all []limit) {
	number := func(keyword string) (n int, ok bool) {
		text, ok := schema[keyword].(json.Number)
		n, err := strconv.Atoi(text.String())
		return n, ok && err == nil
	}
	if n, ok := number("maxLength"); ok && schema["format"] == nil && schema["pattern"] == nil {
		prefix := ""
		if strings.HasSuffix(name, "url") {
			prefix = "https://shop.test/"
		}
		within := prefix + strings.Repeat("x", n-len(prefix))
		all = append(all, limit{[]any{within}, within + "x"})
	}
	if n, ok := number("maximum"); ok {
		all = append(all, limit{[]any{n}, n + 1})
	}
	if n, ok := number("minimum"); ok {
		all = append(all, limit{[]any{n}, n - 1})
	}
	if values, ok := schema["enum"].([]any); ok && schema["type"] == "string" {
		all = append(all, limit{values, "no-such-value"})
	}
	return all
}

// fieldErrors makes a call and returns the errors for one field.
func fieldErrors(s *cluster.Client, example *http.Request, query, body, name string) (all []string) {
	s.T.Helper()
	got := s.Do(example.Method, example.URL.Path+"?"+query, body)
	fields, _ := got.Body["fields"].([]any)
	for _, f := range fields {
		if field := f.(map[string]any); field["field"] == name {
			all = append(all, field["message"].(string))
		}
	}
	return all
}
