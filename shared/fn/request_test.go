package fn

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trickle sends the head of a request and then a byte of its body every 20 ms. It
// returns the response and how long the server kept the connection open.
func trickle(t *testing.T, url, head string) (response string, held time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	assert.NoError(t, err)
	defer conn.Close()
	began := time.Now()
	_, err = io.WriteString(conn, head+"\r\n\r\n")
	assert.NoError(t, err)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		each := time.NewTicker(20 * time.Millisecond)
		defer each.Stop()
		for {
			select {
			case <-stop:
				return
			case <-each.C:
				if _, err := io.WriteString(conn, "x"); err != nil {
					return
				}
			}
		}
	}()
	assert.NoError(t, conn.SetReadDeadline(time.Now().Add(waitAtMost)))
	text, err := io.ReadAll(conn)
	assert.False(t, isTimeout(err), "the connection is still open, after %q", text)
	return string(text), time.Since(began)
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// The service does not wait for the body of a request that it refuses, or that needs no body.
func TestUnreadBodyClosesConnection(t *testing.T) {
	t.Parallel()
	const small = "Content-Length: 200000"
	wrong := authorization("admin", "wrong")
	onBothKindsOfServer(t, greeter(), func(t *testing.T, h *testServer) {
		var all sync.WaitGroup
		for name, c := range map[string]struct{ line, headers, status string }{
			"without credentials":        {"POST /api/v1/greet", small, "401"},
			"with a wrong password":      {"POST /api/v1/greet", wrong + small, "401"},
			"chunked":                    {"POST /api/v1/greet", wrong + "Transfer-Encoding: chunked", "401"},
			"on an unknown path":         {"POST /nowhere", small, "404"},
			"with another method":        {"DELETE /api/v1/greet", small, "405"},
			"of a probe":                 {"GET /healthz", small, "200"},
			"of a scrape":                {"GET /metrics", small, "200"},
			"too large":                  {"POST /api/v1/greet", adminLine + small, "413"},
			"of a caller without a role": {"GET /api/v1/both", authorization("submitter", "token") + small, "403"},
		} {
			all.Go(func() {
				response, held := trickle(t, h.url, c.line+" HTTP/1.1\r\nHost: x\r\n"+c.headers)
				assert.True(t, strings.HasPrefix(response, "HTTP/1.1 "+c.status), "%s: %s", name, response)
				assert.Less(t, held, bodyTimeout/2, name)
			})
		}
		all.Wait()
	})
}

// onBothKindsOfServer runs a test on the server of the binary, and on a server without limits, like that
// of the functions framework.
func onBothKindsOfServer(t *testing.T, f Function, test func(t *testing.T, h *testServer)) {
	t.Run("our server", func(t *testing.T) {
		t.Parallel()
		h := serveFunctions(t, f)
		test(t, h)
	})
	t.Run("another server", func(t *testing.T) {
		t.Parallel()
		test(t, startServer(t, nil, f))
	})
}

// A connection stays open after a refused call if the whole body has arrived.
func TestRefusalWithWholeBodyKeepsConnection(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, greeter())
	w := h.dialRaw(t)
	for _, want := range []int{401, 200, 401, 200} {
		r := h.request("POST", "/api/v1/greet", `{"name":"`+strings.Repeat("a", 30<<10)+`"}`, as("admin", map[int]string{401: "wrong", 200: "secret"}[want]))
		require.NoError(t, r.Write(w.conn))
		require.Equal(t, want, w.status())
	}
}

// bodyTimeout begins with the call, not when the caller is known.
func TestBodyTimeoutBeginsBeforeAuthentication(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, greeter())
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	req := newRequest(h.env, w, h.request("POST", "/api/v1/greet", `{}`), nil)
	req.start = time.Now().Add(-3 * time.Second)
	var err error
	req.call.memory, err = h.env.budget.enter("ann", false, false)
	require.NoError(t, err)
	require.NoError(t, req.readBody(t.Context(), &mountedRoute{Route: Route{maxBody: 100}}))
	require.Len(t, w.set, 2)
	require.WithinDuration(t, req.start.Add(bodyTimeout), w.set[0], time.Second)
	require.Zero(t, w.set[1], "the deadline is removed after the body")
}

// deadlines records the read deadlines of a request.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.set = append(d.set, at); return nil }

func TestEventWithoutBodyLeavesNoReadDeadline(t *testing.T) {
	t.Parallel()
	h, err := Handler(startServer(t, nil).env, eventFunction(nil))
	require.NoError(t, err)
	r := httptest.NewRequest("POST", "/events/ticker", http.NoBody)
	eventHeaders(r)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, r)
	require.Equal(t, 204, w.Code, w.Body)
	for _, at := range w.set {
		require.True(t, at.IsZero(), "a deadline that passes, as while the process is suspended, would cancel the context of the connection")
	}
}

func TestConnectionOfCancelledCallsIsClosed(t *testing.T) {
	t.Parallel()
	h, err := Handler(startServer(t, nil).env, greeter())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/healthz", nil))
	require.Equal(t, "close", w.Header().Get("Connection"))
}
