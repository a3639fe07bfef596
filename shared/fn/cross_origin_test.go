package fn

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

// counting returns a function that counts its calls. Its routes are a POST, a GET that changes something, and
// a GET that does not.
func counting(calls *int) Function {
	count := func(context.Context, *Call, struct{}) (any, error) { *calls++; return nil, nil }
	return HTTP("counting", func(*Env, struct{}) Routes {
		return Routes{
			"POST /api/v1/change": Parameters(Submitter, count),
			"GET /api/v1/claim":   Parameters(Submitter, count).Changes(),
			"GET /api/v1/read":    Parameters(Submitter, count),
		}
	})
}

func TestOtherOriginsCannotChangeData(t *testing.T) {
	t.Parallel()
	calls := 0
	h := startServer(t, func(c *settings.Config) { c.Origins = []string{"https://chat.example"} }, counting(&calls))
	const (
		change = "POST /api/v1/change"
		claim  = "GET /api/v1/claim"
		read   = "GET /api/v1/read"
		chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"
	)
	form := []string{"Origin", "https://evil.example", "Content-Type", "application/x-www-form-urlencoded"}
	for _, c := range []struct {
		name    string
		headers []string
		refused []string
	}{
		{"no browser", nil, nil},
		{"a script with the name of a browser", []string{"User-Agent", "Mozilla/5.0 (Windows NT) WindowsPowerShell/5.1"}, nil},
		{"a form of another origin, over plain HTTP", form, []string{change, claim}},
		{"a form of another origin", append(form, "Sec-Fetch-Site", "cross-site"), []string{change, claim}},
		{"a page of the same site", []string{"Origin", "https://other.example", "Sec-Fetch-Site", "same-site"}, []string{change, claim}},
		{"an image or a link", []string{"Sec-Fetch-Site", "cross-site", "User-Agent", chrome}, []string{change, claim}},
		{"an image, over plain HTTP", []string{"User-Agent", chrome, "Accept-Language", "en"}, []string{claim}},
		{"a script of a page that empties a header, over plain HTTP", []string{"User-Agent", chrome, "Accept-Language", ""}, []string{claim}},
		{"a sandboxed frame", []string{"Origin", "null"}, []string{change, claim}},
		{"a page of the service", []string{"Sec-Fetch-Site", "same-origin", "User-Agent", chrome, "Accept-Language", "en"}, nil},
		{"a page of the service, over plain HTTP", []string{"Origin", h.url}, nil},
		{"an address that was typed", []string{"Sec-Fetch-Site", "none", "User-Agent", chrome, "Accept-Language", "en"}, nil},
		{"a page of an allowed origin", []string{"Origin", "https://chat.example", "Sec-Fetch-Site", "cross-site"}, nil},
	} {
		for _, route := range []string{change, claim, read} {
			method, path, _ := strings.Cut(route, " ")
			before := calls
			r := h.call(method, path, "", header(c.headers...))
			want, called := 200, 1
			if slices.Contains(c.refused, route) {
				want, called = 403, 0
			}
			require.Equal(t, want, r.status, "%s: %s: %s", c.name, route, r.body)
			require.Equal(t, called, calls-before, c.name)
			if want == 403 {
				require.Equal(t, "forbidden", r.Error)
			}
			require.Equal(t, "nosniff", r.header.Get("X-Content-Type-Options"))
		}
	}
}

func TestOtherOriginsAreRefusedBeforeAuthentication(t *testing.T) {
	t.Parallel()
	calls := 0
	h := startServer(t, nil, counting(&calls))
	evil := header("Origin", "https://evil.example")
	require.Equal(t, 403, h.call("POST", "/api/v1/change", "", evil, as("admin", "wrong")).status)
	require.Equal(t, 403, h.call("POST", "/api/v1/change", "", evil, as("nobody", "x")).status)
	require.Equal(t, 401, h.call("POST", "/api/v1/change", "", as("admin", "wrong")).status)
}
