package fn

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

// corsHeaders returns the CORS headers of a response.
func corsHeaders(h http.Header) map[string]string {
	cors := map[string]string{}
	for _, name := range []string{"Allow-Origin", "Allow-Methods", "Allow-Headers", "Allow-Credentials", "Expose-Headers", "Max-Age"} {
		if value := h.Get("Access-Control-" + name); value != "" {
			cors[name] = value
		}
	}
	return cors
}

// send makes a request of the admin and returns the response without its body.
func (h *testServer) send(method, path string, edit func(*http.Request)) *http.Response {
	h.t.Helper()
	res, err := http.DefaultClient.Do(h.request(method, path, "", edit))
	require.NoError(h.t, err)
	require.NoError(h.t, res.Body.Close())
	return res
}

func TestCORS(t *testing.T) {
	t.Parallel()
	const chat = "https://chat.example"
	site := HTTP("site", func(*Env, struct{}) Routes {
		read := func(context.Context, *Call, struct{}) (any, error) { return nil, nil }
		return Routes{
			"GET /api/v1/read":        Query(Submitter, read),
			"PUT /api/v1/things/{id}": Query(Submitter, read),
			"GET /page":               Page(func(w http.ResponseWriter, _ *Visit) { w.WriteHeader(http.StatusOK) }),
			"POST /page":              Page(func(w http.ResponseWriter, _ *Visit) { w.WriteHeader(http.StatusOK) }),
		}
	})
	h := startServer(t, func(c *settings.Config) { c.Origins = []string{chat} }, site)
	closed := startServer(t, func(*settings.Config) {}, site)

	expose := map[string]string{"Allow-Origin": chat, "Expose-Headers": corsResponseHeaders}
	res := h.send("GET", "/api/v1/read", headers("Origin", chat))
	require.Equal(t, expose, corsHeaders(res.Header))
	require.Equal(t, "Origin", res.Header.Get("Vary"))
	res = h.send("GET", "/api/v1/read", headers("Origin", chat, "Authorization", "Basic eDp4"))
	require.Equal(t, expose, corsHeaders(res.Header), "a page can read why it was refused")

	preflight := headers("Origin", chat, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "authorization,content-type")
	res = h.send("OPTIONS", "/api/v1/things/1", preflight)
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, map[string]string{"Allow-Origin": chat, "Expose-Headers": corsResponseHeaders, "Allow-Methods": "PUT", "Allow-Headers": corsRequestHeaders, "Max-Age": corsMaxAge}, corsHeaders(res.Header))

	for name, c := range map[string]struct {
		server             *testServer
		method, path, from string
		preflightMethod    string
	}{
		"another origin":                    {h, "GET", "/api/v1/read", "https://evil.example", ""},
		"a longer origin":                   {h, "GET", "/api/v1/read", chat + ".evil.example", ""},
		"no origin":                         {h, "GET", "/api/v1/read", "", ""},
		"a sandboxed frame":                 {h, "GET", "/api/v1/read", "null", ""},
		"a page":                            {h, "GET", "/page", chat, ""},
		"the health":                        {h, "GET", "/healthz", chat, ""},
		"no such path":                      {h, "GET", "/api/v1/none", chat, ""},
		"a preflight of another origin":     {h, "OPTIONS", "/api/v1/things/1", "https://evil.example", "PUT"},
		"a preflight for a page":            {h, "OPTIONS", "/page", chat, "POST"},
		"a preflight for another method":    {h, "OPTIONS", "/api/v1/things/1", chat, "DELETE"},
		"OPTIONS without a preflight":       {h, "OPTIONS", "/api/v1/things/1", chat, ""},
		"a preflight where none is allowed": {closed, "OPTIONS", "/api/v1/things/1", chat, "PUT"},
		"a call where no origin is allowed": {closed, "GET", "/api/v1/read", chat, ""},
	} {
		pairs := []string{"Origin", c.from}
		if c.preflightMethod != "" {
			pairs = append(pairs, "Access-Control-Request-Method", c.preflightMethod)
		}
		res := c.server.send(c.method, c.path, headers(pairs...))
		require.Empty(t, corsHeaders(res.Header), name)
		require.NotEqual(t, http.StatusNoContent, res.StatusCode, name)
	}
}
