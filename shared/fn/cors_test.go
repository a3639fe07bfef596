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

func TestOnlyAllowedOriginsGetCORSHeaders(t *testing.T) {
	t.Parallel()
	const chat = "https://chat.example"
	site := HTTP("site", func(*Env, struct{}) Routes {
		handle := func(context.Context, *Call, struct{}) (any, error) { return nil, nil }
		return Routes{
			"GET /api/v1/read":        Parameters(Submitter, handle),
			"PUT /api/v1/things/{id}": Parameters(Submitter, handle),
			"GET /page":               Page(func(w http.ResponseWriter, _ *Visit) { w.WriteHeader(http.StatusOK) }),
			"POST /page":              Page(func(w http.ResponseWriter, _ *Visit) { w.WriteHeader(http.StatusOK) }),
		}
	})
	h := startServer(t, func(c *settings.Config) { c.Origins = []string{chat} }, site)
	noOrigins := startServer(t, nil, site)

	expose := map[string]string{"Allow-Origin": chat, "Expose-Headers": corsResponseHeaders}
	res := h.call("GET", "/api/v1/read", "", header("Origin", chat))
	require.Equal(t, expose, corsHeaders(res.header))
	require.Equal(t, "Origin", res.header.Get("Vary"))
	res = h.call("GET", "/api/v1/read", "", header("Origin", chat, "Authorization", "Basic eDp4"))
	require.Equal(t, expose, corsHeaders(res.header), "a page can read why it was refused")

	preflight := header("Origin", chat, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "authorization,content-type")
	res = h.call("OPTIONS", "/api/v1/things/1", "", preflight)
	require.Equal(t, http.StatusNoContent, res.status)
	require.Equal(t, map[string]string{"Allow-Origin": chat, "Expose-Headers": corsResponseHeaders, "Allow-Methods": "PUT", "Allow-Headers": corsRequestHeaders, "Max-Age": corsMaxAge}, corsHeaders(res.header))

	for name, c := range map[string]struct {
		server             *testServer
		method, path, from string
		preflightMethod    string
	}{
		"another origin":                         {h, "GET", "/api/v1/read", "https://evil.example", ""},
		"a longer origin":                        {h, "GET", "/api/v1/read", chat + ".evil.example", ""},
		"no origin":                              {h, "GET", "/api/v1/read", "", ""},
		"a sandboxed frame":                      {h, "GET", "/api/v1/read", "null", ""},
		"a page":                                 {h, "GET", "/page", chat, ""},
		"a probe":                                {h, "GET", "/healthz", chat, ""},
		"no such path":                           {h, "GET", "/api/v1/none", chat, ""},
		"a preflight of another origin":          {h, "OPTIONS", "/api/v1/things/1", "https://evil.example", "PUT"},
		"a preflight for a page":                 {h, "OPTIONS", "/page", chat, "POST"},
		"a preflight for another method":         {h, "OPTIONS", "/api/v1/things/1", chat, "DELETE"},
		"OPTIONS without a preflight":            {h, "OPTIONS", "/api/v1/things/1", chat, ""},
		"a preflight where no origin is allowed": {noOrigins, "OPTIONS", "/api/v1/things/1", chat, "PUT"},
		"a call where no origin is allowed":      {noOrigins, "GET", "/api/v1/read", chat, ""},
	} {
		pairs := []string{"Origin", c.from}
		if c.preflightMethod != "" {
			pairs = append(pairs, "Access-Control-Request-Method", c.preflightMethod)
		}
		res := c.server.call(c.method, c.path, "", header(pairs...))
		require.Empty(t, corsHeaders(res.header), name)
		require.NotEqual(t, http.StatusNoContent, res.status, name)
	}
}
