package fn

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trickle sends the head of a request and then a byte of its body every 20 ms. It returns the response and how long the
// server kept the connection open.
func trickle(t *testing.T, url, head string) (response string, openFor time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	assert.NoError(t, err)
	defer conn.Close()
	began := time.Now()
	_, err = io.WriteString(conn, head+"\r\n\r\n")
	assert.NoError(t, err)
	go func() { // until the connection is closed
		for err := error(nil); err == nil; _, err = io.WriteString(conn, "x") {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	assert.NoError(t, conn.SetReadDeadline(time.Now().Add(waitAtMost)))
	text, err := io.ReadAll(conn)
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection is still open, after %q", text)
	return string(text), time.Since(began)
}

// The service does not wait for the body of a request that it refuses, or that needs no body.
func TestUnreadBodyClosesConnection(t *testing.T) {
	t.Parallel()
	const length = "Content-Length: 200000"
	wrong := authorization("admin", "wrong")
	for server, h := range map[string]*testServer{
		"our server": serveFunctions(t, greeter()),
		"a server without limits, like the framework's": startServer(t, nil, greeter()),
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			for name, c := range map[string]struct{ line, headers, status string }{
				"without credentials":        {"POST /api/v1/greet", length, "401"},
				"with a wrong password":      {"POST /api/v1/greet", wrong + length, "401"},
				"chunked":                    {"POST /api/v1/greet", wrong + "Transfer-Encoding: chunked", "401"},
				"on an unknown path":         {"POST /nowhere", length, "404"},
				"with another method":        {"DELETE /api/v1/greet", length, "405"},
				"of a probe":                 {"GET /healthz", length, "200"},
				"of a scrape":                {"GET /metrics", length, "200"},
				"too large":                  {"POST /api/v1/greet", adminLine + length, "413"},
				"of a caller without a role": {"GET /api/v1/both", authorization("submitter", "token") + length, "403"},
			} {
				all.Go(func() {
					response, openFor := trickle(t, h.url, c.line+" HTTP/1.1\r\nHost: x\r\n"+c.headers)
					assert.True(t, strings.HasPrefix(response, "HTTP/1.1 "+c.status), "%s: %s", name, response)
					assert.Less(t, openFor, bodyTimeout/2, name)
				})
			}
			all.Wait()
		})
	}
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
	h, err := Handler(newTestServer(t, nil).env, eventFunction(nil))
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
	h, err := Handler(newTestServer(t, nil).env, greeter())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/healthz", nil))
	require.Equal(t, "close", w.Header().Get("Connection"))
}

func TestInvalidChunksAreBadRequest(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, greeter())
	for _, chunks := range []string{"2;" + strings.Repeat("x", 4094), "z\r\n{}\r\n0\r\n\r\n", "\r\n\r\n", "2\r\n{}}0\r\n\r\n", "fffffffffffffffff\r\n"} {
		response := h.dialRaw(t).sendLast("POST /api/v1/greet HTTP/1.1\r\nHost: x\r\n" + adminLine + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
		require.Contains(t, response, "HTTP/1.1 400", "%.20q", chunks)
		require.Contains(t, response, "is not valid in the chunked transfer coding of HTTP", "%.20q", chunks)
	}
}

// After a 4xx response an event would be a dead letter, and a client would not repeat its call.
func TestCallWhoseBodyBreaksOffMayBeRepeated(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, eventFunction(nil), greeter())
	for _, path := range []string{"/events/ticker", "/api/v1/greet"} {
		response := h.dialRaw(t).sendLast("POST " + path + " HTTP/1.1\r\nHost: x\r\n" + adminLine + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		require.Contains(t, response, "HTTP/1.1 503", path)
		require.Contains(t, response, "Retry-After: 1", path)
		require.Contains(t, response, "the body did not arrive in full within 10s; repeat the same call later", path)
	}
}
