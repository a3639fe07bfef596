package fn

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// rawConn is a connection over which a test sends raw text.
type rawConn struct {
	t         *testing.T
	conn      net.Conn
	responses *bufio.Reader
}

func (h *testServer) dialRaw(t *testing.T) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
	return &rawConn{t, conn, bufio.NewReader(conn)}
}

func (w *rawConn) send(text string) {
	w.t.Helper()
	_, err := io.WriteString(w.conn, text)
	require.NoError(w.t, err)
}

// sendLast sends text, closes the sending side, and returns what the server sends until it closes the connection.
func (w *rawConn) sendLast(text string) string {
	w.t.Helper()
	w.send(text)
	require.NoError(w.t, w.conn.(*net.TCPConn).CloseWrite())
	response, err := io.ReadAll(w.responses)
	require.NoError(w.t, err)
	return string(response)
}

func (w *rawConn) status() int {
	w.t.Helper()
	res, err := http.ReadResponse(w.responses, nil)
	require.NoError(w.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(w.t, err)
	return res.StatusCode
}

// headerOf returns a header of n lines, without the empty line at its end.
func headerOf(path string, n int) string {
	return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A:\r\n", n-1)
}

func TestTooManyHeaderLinesAreRefusedEarly(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	runServer(t, h, nil, greeter())
	for name, sent := range map[string]string{
		"at once":                         headerOf("/", maxHeaderLines+1),
		"of empty lines":                  strings.Repeat("\n", maxHeaderLines+2),
		"with line ends alone":            strings.ReplaceAll(headerOf("/", maxHeaderLines+1), "\r", ""),
		"after another request":           headerOf("/", 1) + "\r\n" + headerOf("/", 4*maxHeaderLines),
		"after another request's body":    headerOf("/", 1) + "Content-Length: 2\r\n\r\n{}" + headerOf("/", 4*maxHeaderLines),
		"after a body of unknown length":  headerOf("/", 1) + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + headerOf("/", 4*maxHeaderLines),
		"after an empty line of a client": headerOf("/", 1) + "\r\n\r\n" + headerOf("/", 4*maxHeaderLines),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := h.dialRaw(t)
			w.send(sent)
			if strings.HasPrefix(name, "after") {
				require.Equal(t, 404, w.status())
			}
			require.Equal(t, 431, w.status())
			_, err := w.responses.ReadByte()
			require.ErrorIs(t, err, io.EOF, "the connection is closed")
			require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`).status, "others go on")
		})
	}
}

func TestHeaderLinesAreCountedPerHeader(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	runServer(t, h, nil, greeter())
	w := h.dialRaw(t)
	request := func(body string) string {
		head := "POST /api/v1/greet HTTP/1.1\r\nHost: x\r\n" + adminLine + "Content-Type: application/json\r\n"
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
		return head + strings.Repeat("A:\r\n", maxHeaderLines-4) + "\r\n" + body
	}
	for _, lines := range []int{0, 100, 300, 1000, 20_000} {
		body := strings.Repeat("\n", lines) + `{"name":"a"}` + strings.Repeat("\r\n", lines)
		w.send(request(body))
		require.Equal(t, 200, w.status(), "%d", lines)
	}
	w.send(strings.Repeat(request(`{"name":"a"}`), 3))
	for range 3 {
		require.Equal(t, 200, w.status(), "pipelined requests too")
	}
}

// A waiting call keeps only the header Authorization.
func TestWaitingCallsDropHeaders(t *testing.T) {
	t.Parallel()
	kept := make(chan http.Header, 3)
	waiting := HTTP("waiting", func(*Env, struct{}) Routes {
		return Routes{
			"POST /poll": Raw(Submitter, func(_ context.Context, c *Call) (any, error) {
				err := c.StartWaiting()
				kept <- c.RequestHeader()
				return nil, err
			}),
			"GET /stream": WithSocket(Stream(Submitter, func(_ context.Context, c *Call, _ struct{}, w *EventWriter) error {
				err := w.Mark("1")
				kept <- c.RequestHeader()
				return err
			}), nil, func(_ context.Context, c *Call, _ struct{}, s *Socket) error {
				err := s.Open(1000, repeats)
				kept <- c.RequestHeader()
				return err
			}),
		}
	})
	h := startServer(t, nil)
	runServer(t, h, nil, waiting, greeter())
	large := header("X-Large", strings.Repeat("a", 10_000))
	require.Equal(t, 200, h.call("POST", "/poll", "", large).status)
	require.Equal(t, 200, h.call("GET", "/stream", "", large).status)
	r := h.request("GET", "/stream", "", large)
	conn, _, err := websocket.Dial(t.Context(), r.URL.String(), &websocket.DialOptions{HTTPHeader: r.Header})
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	for range 3 {
		require.Equal(t, http.Header{"Authorization": {r.Header.Get("Authorization")}}, <-kept)
	}
	require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`, large).status, "others go on")
}

// Connections that send large headers without an end are closed, the oldest first. Clients that send
// their headers at once are served.
func TestHalfSentHeadersUseBoundedMemory(t *testing.T) {
	t.Parallel()
	const limit, attackers, size = 64 << 10, 40, 15 << 10
	h := startServer(t, nil)
	var memory *headerMemory
	runServer(t, h, func(s *server) {
		s.http.headers.max = limit
		memory = &s.http.headers
	}, greeter())
	used := func() int {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.used
	}
	large := header("X-Large", strings.Repeat("a", 10_000))
	small := make([]*rawConn, 10)
	for i := range small {
		small[i] = h.dialRaw(t)
		small[i].send(headerOf("/", 1) + "X-Small: " + strings.Repeat("a", smallHeader-200))
	}
	var open []*rawConn
	for range attackers {
		w := h.dialRaw(t)
		w.send(headerOf("/", 1) + "X-Large: " + strings.Repeat("a", size))
		open = append(open, w)
		require.LessOrEqual(t, used(), limit)
		require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`, large).status, "others go on")
	}
	for _, w := range open[:attackers-limit/size-1] {
		_, err := w.responses.ReadByte()
		require.Error(t, err, "it was closed")
		require.False(t, isTimeout(err))
	}
	for _, w := range small {
		w.send("\r\n\r\n")
		require.Equal(t, 404, w.status(), "small headers may take their time")
	}
	for _, w := range open {
		require.NoError(t, w.conn.Close())
	}
	require.Eventually(t, func() bool { return used() == 0 }, waitAtMost, tick, "everything is released")
	require.Zero(t, memory.holders.Len())
}
