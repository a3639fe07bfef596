package sender_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sender"
)

const jsonBody = `{"to":"{{.PhoneNumber}}","text":"{{.Content}}"}`

func newHTTPGateway(t *testing.T, cfg sender.HTTPConfig) sender.Gateway {
	t.Helper()
	g, err := sender.NewHTTP(cfg)
	require.NoError(t, err)
	return g
}

// newProvider starts a provider until the end of the test and returns its URL.
func newProvider(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

var hello = sender.Message{TaskID: "id-1", ClaimID: 7, PhoneNumber: "+8613800138000", Content: "hello", RetryCount: 2}

func TestHTTPStatusDecidesOutcome(t *testing.T) {
	t.Parallel()
	custom := map[string]sender.Outcome{"404": sender.Retryable, "5xx": sender.Retryable, "500": sender.Failed, "401": sender.Failed}
	for _, c := range []struct {
		status     int
		retryAfter string
		outcomes   map[string]sender.Outcome
		want       sender.Outcome
		wantAfter  time.Duration
	}{
		{status: 200, want: sender.OK},
		{status: 204, want: sender.OK},
		{status: 303, want: sender.Unknown},
		{status: 400, want: sender.Failed},
		{status: 401, want: sender.Released, wantAfter: 30 * time.Second},
		{status: 408, want: sender.Retryable},
		{status: 429, want: sender.Released, wantAfter: 30 * time.Second},
		{status: 429, retryAfter: "7", want: sender.Released, wantAfter: 7 * time.Second},
		{status: 500, want: sender.Unknown},
		{status: 500, retryAfter: "7", want: sender.Unknown},
		{status: 503, want: sender.Unknown},
		{status: 503, retryAfter: "7", want: sender.Released, wantAfter: 7 * time.Second},
		{status: 503, retryAfter: "99999999999", want: sender.Released, wantAfter: 7 * 24 * time.Hour},
		{status: 401, outcomes: custom, want: sender.Failed},
		{status: 404, outcomes: custom, want: sender.Retryable},
		{status: 410, outcomes: custom, want: sender.Failed},
		{status: 500, outcomes: custom, want: sender.Failed},
		{status: 502, outcomes: custom, want: sender.Retryable},
		{status: 503, retryAfter: "7", outcomes: custom, want: sender.Released, wantAfter: 7 * time.Second},
	} {
		provider := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.retryAfter != "" {
				w.Header().Set("Retry-After", c.retryAfter)
			}
			w.WriteHeader(c.status)
			if c.status != http.StatusNoContent {
				_, _ = io.WriteString(w, "because\n")
			}
		})
		result := newHTTPGateway(t, sender.HTTPConfig{URL: provider, Outcomes: c.outcomes}).Send(t.Context(), hello)
		require.Equal(t, c.want, result.Outcome, c)
		require.Equal(t, c.wantAfter, result.RetryAfter, c)
		if c.want != sender.OK {
			require.Equal(t, fmt.Sprint(c.status), result.Code)
			require.Contains(t, result.Message, "because")
		}
	}
}

func TestHTTPRetryAfterDate(t *testing.T) {
	t.Parallel()
	provider := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	})
	result := newHTTPGateway(t, sender.HTTPConfig{URL: provider}).Send(t.Context(), hello)
	require.InDelta(t, time.Hour, result.RetryAfter, float64(time.Minute))
}

func TestHTTPResponseFieldDecidesOutcome(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]sender.Result{
		`{"result":{"code":0}}`:            {Outcome: sender.OK},
		`{"result":{"code":"0"}}`:          {Outcome: sender.OK},
		`{"result":{"code":17,"why":"x"}}`: {Outcome: sender.Failed, Code: "17", Message: `{"result":{"code":17,"why":"x"}}`},
		`{"result":{"code":null}}`:         {Outcome: sender.Failed, Code: "null", Message: `{"result":{"code":null}}`},
		`{"result":{}}`:                    {Message: `the response has no text, number, boolean or null at result.code: {"result":{}}`},
		`{"result":0}`:                     {Message: `the response has no text, number, boolean or null at result.code: {"result":0}`},
		`{"result":[0]}`:                   {Message: `the response has no text, number, boolean or null at result.code: {"result":[0]}`},
		`{"result":{"code":{}}}`:           {Message: `the response has no text, number, boolean or null at result.code: {"result":{"code":{}}}`},
		`<html>`:                           {Message: `the response has no text, number, boolean or null at result.code: <html>`},
		``:                                 {Message: `the response has no text, number, boolean or null at result.code: `},
	} {
		provider := newProvider(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		g := newHTTPGateway(t, sender.HTTPConfig{URL: provider, OKField: "result.code", OKValue: "0"})
		require.Equal(t, want, g.Send(t.Context(), hello), body)
	}
	provider := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"messages":[{"ok":false},{"ok":true}]}`)
	})
	g := newHTTPGateway(t, sender.HTTPConfig{URL: provider, OKField: "messages.1.ok", OKValue: "true"})
	require.Equal(t, sender.OK, g.Send(t.Context(), hello).Outcome)
}

// request is a request that a provider received.
type request struct {
	method, path, query, body string
	header                    http.Header
}

func sendAndCapture(t *testing.T, cfg sender.HTTPConfig, m sender.Message) request {
	t.Helper()
	requests := make(chan request, 1)
	provider := newProvider(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header}
	})
	cfg.URL = provider + cfg.URL
	require.Equal(t, sender.OK, newHTTPGateway(t, cfg).Send(t.Context(), m).Outcome)
	return <-requests
}

func TestHTTPFieldsAreEscaped(t *testing.T) {
	t.Parallel()
	m := hello
	m.Content = "a \"b\"\r\nX-Evil: 1&c=d+e/../你"
	r := sendAndCapture(t, sender.HTTPConfig{
		URL: "/send/{{.Content}}?to={{.PhoneNumber}}&text={{.Content}}", Body: jsonBody,
		Header: map[string]string{"Idempotency-Key": "{{.TaskID}}-{{.ClaimID}}-{{.RetryCount}}", "X-Text": "{{.Content}}"},
	}, m)
	require.Equal(t, "POST", r.method)
	require.Equal(t, "/send/"+m.Content, r.path)
	require.Equal(t, `to=%2B8613800138000&text=a%20%22b%22%0D%0AX-Evil%3A%201%26c%3Dd%2Be%2F..%2F%E4%BD%A0`, r.query)
	require.JSONEq(t, `{"to":"+8613800138000","text":"a \"b\"\r\nX-Evil: 1&c=d+e/../你"}`, r.body)
	require.Equal(t, "application/json", r.header.Get("Content-Type"))
	require.Equal(t, "id-1-7-2", r.header.Get("Idempotency-Key"))
	require.Empty(t, r.header.Get("X-Evil"))
	require.Equal(t, m.Content, strings.Replace(r.header.Get("X-Text"), "  ", "\r\n", 1))

	r = sendAndCapture(t, sender.HTTPConfig{Body: "text={{.Content}}", Header: map[string]string{"content-type": "application/x-www-form-urlencoded; charset=utf-8"}}, m)
	require.Equal(t, "text=a+%22b%22%0D%0AX-Evil%3A+1%26c%3Dd%2Be%2F..%2F%E4%BD%A0", r.body)
	r = sendAndCapture(t, sender.HTTPConfig{Body: "{{.Content}}", Header: map[string]string{"Content-Type": "text/plain"}}, m)
	require.Equal(t, m.Content, r.body)
	r = sendAndCapture(t, sender.HTTPConfig{Method: "GET", URL: "/?t={{.Content}}"}, m)
	require.Equal(t, "GET", r.method)
	require.Empty(t, r.body)
}

func TestHTTPUnreachableProviderIsReleased(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS() // its certificate is not trusted
	defer secure.Close()
	for _, url := range []string{"http://127.0.0.1:1/?token=secret", secure.URL + "/?token=secret", "http://no.such.host.invalid/?token=secret"} {
		result := newHTTPGateway(t, sender.HTTPConfig{URL: url}).Send(t.Context(), hello)
		require.Equal(t, sender.Released, result.Outcome, "an unavailable provider uses no retry: %s", result.Message)
		require.Equal(t, "unreachable", result.Code)
		require.Equal(t, 30*time.Second, result.RetryAfter)
		require.NotContains(t, result.Message, "secret")

		result = newHTTPGateway(t, sender.HTTPConfig{URL: url, Outcomes: map[string]sender.Outcome{"unreachable": sender.Retryable}}).Send(t.Context(), hello)
		require.Equal(t, sender.Retryable, result.Outcome)
	}
}

func TestHTTPWithoutResponseIsUnknown(t *testing.T) {
	t.Parallel()
	for name, respond := range map[string]func(w http.ResponseWriter, r *http.Request){
		"connection reset":            func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"no response":                 func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a response that is not HTTP": func(w http.ResponseWriter, _ *http.Request) { hijack(w, "hello\r\n\r\n") },
		"truncated header":            func(w http.ResponseWriter, _ *http.Request) { hijack(w, "HTTP/1.1 200 OK\r\nContent-") },
	} {
		for _, method := range []string{"POST", "GET"} {
			t.Run(name+" after a "+method, func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int64
				provider := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					calls.Add(1)
					respond(w, r)
				})
				g := newHTTPGateway(t, sender.HTTPConfig{
					URL: provider + "/?token=secret", Method: method, Header: map[string]string{"Idempotency-Key": "{{.TaskID}}"},
				})
				for n := range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					result := g.Send(ctx, hello)
					cancel()
					require.Equal(t, sender.Unknown, result.Outcome)
					require.NotContains(t, result.Message, "secret")
					require.EqualValues(t, n+1, calls.Load(), "the transport repeats nothing")
				}
			})
		}
	}
}

// hijack writes text to the connection and closes it.
func hijack(w http.ResponseWriter, text string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, text)
	_ = conn.Close()
}

func TestHTTPTruncatedBodyIsUnknownOnlyWithOKField(t *testing.T) {
	t.Parallel()
	provider := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"code\":")
	})
	require.Equal(t, sender.OK, newHTTPGateway(t, sender.HTTPConfig{URL: provider}).Send(t.Context(), hello).Outcome)
	result := newHTTPGateway(t, sender.HTTPConfig{URL: provider, OKField: "code", OKValue: "0"}).Send(t.Context(), hello)
	require.Equal(t, sender.Unknown, result.Outcome)
	require.Contains(t, result.Message, "incomplete")
}

func TestNewHTTPNamesAllErrors(t *testing.T) {
	t.Parallel()
	_, err := sender.NewHTTP(sender.HTTPConfig{
		URL: "http://x/{{.Phone", Header: map[string]string{"Content-Type": "application/xml", "A": "{{"}, Body: "{{end}}",
		Outcomes: map[string]sender.Outcome{"6xx": sender.OK, "unreachable": sender.OK}, OKValue: "0",
	})
	for _, text := range []string{"URL", "header A", "body", "application/xml", `"6xx"`, "nothing was sent", "OKValue needs OKField"} {
		require.ErrorContains(t, err, text)
	}
	for _, url := range []string{"", "/send", "ftp://x/", "http:///send", "http://x/{{.Phone}}", ":"} {
		_, err := sender.NewHTTP(sender.HTTPConfig{URL: url})
		require.Error(t, err, url)
	}
	_, err = sender.NewHTTP(sender.HTTPConfig{URL: "http://x/", Method: "GE T"})
	require.ErrorContains(t, err, "method")
}
