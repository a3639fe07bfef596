package fn

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// runServer serves functions with our own server until stop is called; ended then receives the
// result of run.
func runServer(t *testing.T, h *testServer, change func(*server), functions ...Function) (stop func(), ended <-chan error) {
	t.Helper()
	handler, err := Handler(h.env, functions...)
	require.NoError(t, err)
	s := newServer(h.env, handler)
	if change != nil {
		change(s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, l) }()
	t.Cleanup(cancel)
	return cancel, done
}

// serveFunctions serves functions with our own server until the end of the test.
func serveFunctions(t *testing.T, functions ...Function) *testServer {
	t.Helper()
	h := newTestServer(t, nil)
	runServer(t, h, nil, functions...)
	return h
}

// greetText is a call of POST /api/v1/greet as text.
var greetText = "POST /api/v1/greet HTTP/1.1\r\nHost: x\r\n" + adminLine + "Content-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"name\":\"a\"}"

func TestDrainFinishesCallsAndClosesListener(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := newTestServer(t, nil)
	stop, ended := runServer(t, h, func(s *server) { s.drainGrace = time.Minute }, holder.function(), greeter())
	address := strings.TrimPrefix(h.url, "http://")
	idle := h.dialRaw(t)
	idle.send(greetText)
	res := idle.response()
	require.Equal(t, 200, res.StatusCode)
	require.False(t, res.Close)
	status := h.begin(holder, "POST", "/hold", "submitter")
	stop()
	<-h.env.Draining()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, waitAtMost, tick, "a new connection is refused")
	idle.send(greetText)
	res = idle.response()
	require.Equal(t, 200, res.StatusCode, "over a connection that was open")
	require.True(t, res.Close, "this connection is then closed")
	require.Empty(t, ended, "the drain waits for the call in progress")
	holder.release()
	require.Equal(t, 200, <-status, "the response of that call is complete")
}

func TestDrainingInstanceIsNotReady(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	close(h.env.limiter.draining)
	require.Equal(t, `{"status":"draining"}`+"\n", h.call("GET", "/readyz", "").body)
	r := h.call("GET", "/healthz", "")
	require.Equal(t, 200, r.status)
	require.True(t, r.closes)
}

func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := newTestServer(t, func(c *settings.Config) { c.DrainTimeout = 30 * time.Millisecond })
	stop, ended := runServer(t, h, nil, holder.function())
	status := h.begin(holder, "POST", "/hold", "submitter")
	stop()
	require.ErrorContains(t, <-ended, "1 calls were cut off")
	require.Zero(t, <-status, "the connection was cut")
}

func TestLongPollOutlivesReadTimeout(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, nil)
	wait := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
			return task.Refuse(task.CodeConflict, "waited")
		}
	}
	runServer(t, h, func(s *server) { s.http.ReadTimeout = 50 * time.Millisecond }, failing(wait))
	require.Equal(t, 409, h.call("POST", "/api/v1/fail", `{}`).status)
	require.Equal(t, 409, h.call("POST", "/api/v1/fail", ``).status)
}

func TestConnectionWithoutKnownCallerIsClosed(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, greeter())
	const maxUnknown = 64 // that of package httpserver
	const unknownPath = "GET /nosuch HTTP/1.1\r\nHost: x\r\n\r\n"
	statuses := func(requests string) (n map[int]int, closed bool) {
		w := h.dialRaw(t)
		w.send(requests)
		n = map[int]int{}
		for !closed && (n[200] == 0 || n[404] < maxUnknown-1) {
			response := w.response()
			n[response.StatusCode]++
			closed = response.Close
		}
		return n, closed
	}
	n, closed := statuses(strings.Repeat(unknownPath, maxUnknown))
	require.Equal(t, map[int]int{404: maxUnknown}, n)
	require.True(t, closed)
	n, closed = statuses(strings.Repeat(unknownPath, maxUnknown/2) + greetText + strings.Repeat(unknownPath, maxUnknown/2-1))
	require.Equal(t, map[int]int{404: maxUnknown - 1, 200: 1}, n, "a call of a known caller resets the count")
	require.False(t, closed)
}

func TestHalfClosedClientGetsNo200(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, failing(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	response := h.dialRaw(t).sendLast("POST /api/v1/fail HTTP/1.1\r\nHost: x\r\n" + adminLine + "\r\n")
	require.Contains(t, response, "HTTP/1.1 499")
	line := h.callLines(1)[0]
	require.Equal(t, []any{499.0, "client_gone"}, []any{line["status"], line["error"]})
}
