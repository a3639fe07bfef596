package fn

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

func TestFrameworkDrainRefusesNewCalls(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, nil, greeter(), holder.function())
	status := h.begin(holder, "POST", "/hold", "submitter")
	ended := make(chan error, 1)
	go func() { ended <- h.env.drain(0, h.env.limiter.close) }()
	var r reply
	require.Eventually(t, func() bool {
		r = h.greet()
		return r.status != 200
	}, waitAtMost, tick)
	require.Equal(t, 503, r.status)
	require.Equal(t, "this instance is about to end, try again", r.Message)
	require.True(t, r.closes)
	require.Equal(t, "1", r.header.Get("Retry-After"))
	require.Empty(t, ended, "the drain waits for the call in progress")
	holder.release()
	require.Equal(t, 200, <-status, "the response of that call is complete")
	require.NoError(t, <-ended)
}

func TestFrameworkDrainIsBounded(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, func(c *settings.Config) { c.DrainTimeout = 30 * time.Millisecond }, holder.function())
	status := h.begin(holder, "POST", "/hold", "submitter")
	require.EqualError(t, h.env.drain(time.Hour, h.env.limiter.close), "drain: 1 calls were cut off: context deadline exceeded")
	holder.release()
	require.Equal(t, 200, <-status)
}

// serveWithoutLimits serves function in memory with a server without limits, like the framework's.
// wrap wraps the handler.
func serveWithoutLimits(t *testing.T, function Function, wrap func(http.Handler) http.Handler) *pipes {
	handler, err := Handler(newTestServer(t, nil).env, function)
	require.NoError(t, err)
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: wrap(handler)}
	go func() { _ = server.Serve(l) }() // until it is closed
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return l
}

func TestWriteTimeoutOnServerWithoutLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		server := serveWithoutLimits(t, failing(func(context.Context) error { return task.Refuse(task.CodeConflict, "x") }), func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(over)
				h.ServeHTTP(w, r)
				_ = http.NewResponseController(w).Flush()
			})
		})
		began := time.Now()
		conn := server.dial()
		defer conn.Close()
		_, err := io.WriteString(conn, "POST /api/v1/fail HTTP/1.1\r\nHost: x\r\n"+adminLine+"\r\n")
		require.NoError(t, err)
		<-over
		require.Equal(t, httpserver.WriteTimeout, time.Since(began))
	})
}

func TestHostDeadlineEndsStreamWithRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := serveWithoutLimits(t, streamer(waits), func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
				defer cancel()
				h.ServeHTTP(w, r.WithContext(ctx))
			})
		})
		conn := server.open(t, adminLine)
		defer conn.Close()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "id: 6\n\nid: 7\nevent: message\ndata: {\"a\":1}\n\n:\n\nretry: 250\n\n", string(text))
	})
}
