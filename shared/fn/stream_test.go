package fn

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

type streamRequest struct {
	After int `json:"after"`
}

func streamer(handle func(ctx context.Context, c *Call, req streamRequest, w *EventWriter) error) Function {
	return HTTP("streamer", func(*Env, struct{}) Routes {
		return Routes{"GET /api/v1/stream": Stream(Receiver, handle).Or(Submitter)}
	})
}

// waits sends a mark and an event, and waits for the end of its stream.
func waits(ctx context.Context, _ *Call, req streamRequest, w *EventWriter) error {
	if err := w.Mark("6"); err != nil {
		return err
	}
	if err := w.Send("7", "message", []byte(`{"a":1}`)); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// pipes is a net.Listener in memory, for synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p *pipes) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil }}}
}

// serveInMemory serves function with our server over pipes until stop is called.
func serveInMemory(t *testing.T, function Function) (h *testServer, l *pipes, stop func()) {
	h = newTestServer(t, nil)
	h.url = "http://pipe"
	handler, err := Handler(h.env, function)
	require.NoError(t, err)
	l = &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- newServer(h.env, handler).run(ctx, l) }()
	return h, l, func() { cancel(); require.NoError(t, <-ended) }
}

// open requests the stream over a new connection.
func (p *pipes) open(t *testing.T, credentials string) net.Conn {
	conn := p.dial()
	_, err := io.WriteString(conn, "GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n"+credentials+"\r\n")
	require.NoError(t, err)
	return conn
}

func TestStreamSendsEventsAndHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, server, stop := serveInMemory(t, streamer(waits))
		conn := server.open(t, adminLine)
		defer conn.Close()
		began := time.Now()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
		require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
		body := bufio.NewReader(res.Body)
		readLines := func(n int) (text string) {
			for range n {
				line, err := body.ReadString('\n')
				require.NoError(t, err)
				text += line
			}
			return text
		}
		require.Equal(t, "id: 6\n\nid: 7\nevent: message\ndata: {\"a\":1}\n\n", readLines(6))
		require.Zero(t, time.Since(began), "at once")
		for n := range 3 {
			require.Equal(t, ":\n\n", readLines(2))
			require.Equal(t, time.Duration(n+1)*heartbeat, time.Since(began))
		}
		rest, err := io.ReadAll(body)
		require.NoError(t, err)
		require.Equal(t, "retry: 250\n\n", string(rest))
		require.Equal(t, streamTimeout, time.Since(began), "the WriteTimeout of the server does not end the stream")
		stop()
		line := h.callLines(1)[0]
		require.Equal(t, 200.0, line["status"])
		require.Nil(t, line["error"])
		require.EqualValues(t, 43+3*3+12, line["bytes"])
	})
}

func TestStreamEndsWhenClientDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, over := time.Now(), make(chan struct{})
		h, server, stop := serveInMemory(t, streamer(func(ctx context.Context, _ *Call, _ streamRequest, w *EventWriter) error {
			defer close(over)
			for {
				if err := w.Send("1", "message", make([]byte, 32<<10)); err != nil {
					<-ctx.Done() // the failed write cancels ctx
					return err
				}
			}
		}))
		defer server.open(t, adminLine).Close()
		<-over
		require.Equal(t, clientWriteTimeout, time.Since(began))
		stop()
		line := h.callLines(1)[0]
		require.Equal(t, "client_gone", line["error"])
		require.Contains(t, line["cause"], "timeout")
	})
}

func TestStreamEndsWhenClientLeaves(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, streamer(waits))
	ctx, leave := context.WithCancel(t.Context())
	res, err := http.DefaultClient.Do(h.request("GET", "/api/v1/stream", "").WithContext(ctx))
	require.NoError(t, err)
	_, err = io.ReadFull(res.Body, make([]byte, 10))
	require.NoError(t, err)
	leave()
	require.NoError(t, res.Body.Close())
	line := h.callLines(1)[0]
	require.Equal(t, 200.0, line["status"], "the status that was sent")
	require.Equal(t, "client_gone", line["error"])
}

func TestDrainEndsStreamsAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, nil)
	stop, ended := runServer(t, h, nil, streamer(waits))
	res, err := http.DefaultClient.Do(h.request("GET", "/api/v1/stream", ""))
	require.NoError(t, err)
	defer res.Body.Close()
	stop()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(text), "\n\nretry: 250\n\n"), "%s", text)
	require.NoError(t, <-ended)
}

func TestFailureBeforeStreamBeginsIsJSON(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, streamer(func(context.Context, *Call, streamRequest, *EventWriter) error {
		return task.Refuse(task.CodeNotFound, "no such user")
	}))
	r := h.call("GET", "/api/v1/stream?after=3", "")
	require.Equal(t, 404, r.status)
	require.Equal(t, "not_found", r.Error)
	require.Equal(t, 400, h.call("GET", "/api/v1/stream?before=3", "").status)
	require.Equal(t, 404, h.call("GET", "/api/v1/stream", "", as("receiver", "token")).status)
	require.Equal(t, 404, h.call("GET", "/api/v1/stream", "", as("submitter", "token")).status)
	refused := h.call("GET", "/api/v1/stream", "", as("sender", "token"))
	require.Equal(t, 403, refused.status)
	require.Equal(t, "this needs the role receiver or submitter", refused.Message)
}

// bugs are the ways in which a handler with a bug can end.
var bugs = map[string]func() error{
	"an error": func() error { return errors.New("bug") },
	"a panic":  func() error { panic("bug") },
}

func TestFailureAfterFirstWriteEndsStream(t *testing.T) {
	t.Parallel()
	for name, fails := range bugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var kept *EventWriter
			h := startServer(t, nil, streamer(func(_ context.Context, _ *Call, _ streamRequest, w *EventWriter) error {
				kept = w
				require.NoError(t, w.Comment("hello\r\nworld"))
				return fails()
			}))
			r := h.call("GET", "/api/v1/stream", "")
			require.Equal(t, 200, r.status)
			require.Equal(t, ": hello  world\n\n", r.body)
			line := h.callLines(1)[0]
			require.Equal(t, "internal", line["error"])
			require.Contains(t, line["cause"], "bug")
			require.Equal(t, "ERROR", line["level"])
			require.Error(t, kept.Comment("too late"))
		})
	}
}

func TestEmptyStreamIs200(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, streamer(func(context.Context, *Call, streamRequest, *EventWriter) error { return nil }))
	r := h.call("GET", "/api/v1/stream", "")
	require.Equal(t, 200, r.status)
	require.Equal(t, "retry: 250\n\n", r.body)
}

func TestMultilineDataIsOneEvent(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, streamer(func(_ context.Context, _ *Call, _ streamRequest, w *EventWriter) error {
		return w.Send("1", "ack", []byte("{\r\n\"a\":\r1}\n"))
	}))
	require.Equal(t, "id: 1\nevent: ack\ndata: {\ndata: \"a\":\ndata: 1}\ndata: \n\nretry: 250\n\n", h.call("GET", "/api/v1/stream", "").body)
}
