package httpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const waitAtMost = 10 * time.Second

// serve returns a server of this package, and its address. The server reads the body and then responds
// to /ok with 200 and to other paths with 404.
func serve(t *testing.T) (s *Server, address string) {
	t.Helper()
	s = New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path != "/ok" {
			w.WriteHeader(http.StatusNotFound)
		}
	}), 1000, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	go func() { _ = s.Serve(l) }() // until Close
	return s, l.Addr().String()
}

// client is a connection over which a test sends raw text.
type client struct {
	t         *testing.T
	conn      net.Conn
	responses *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(text string) {
	c.t.Helper()
	_, err := io.WriteString(c.conn, text)
	require.NoError(c.t, err)
}

func (c *client) status() int {
	c.t.Helper()
	res, err := http.ReadResponse(c.responses, nil)
	require.NoError(c.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(c.t, err)
	return res.StatusCode
}

// requireServed requires that a new client with this header line gets a response.
func requireServed(t *testing.T, address, header string) {
	t.Helper()
	c := dial(t, address)
	c.send("GET /ok HTTP/1.1\r\nHost: x\r\n" + header + "\r\n")
	require.Equal(t, http.StatusOK, c.status(), "other clients are served")
}

// headerOf returns a request line and n header lines, without the empty line at the end of the header.
func headerOf(path string, n int) string {
	return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A:\r\n", n-1)
}

func TestTooManyHeaderLinesAreRefusedEarly(t *testing.T) {
	t.Parallel()
	_, address := serve(t)
	for name, sent := range map[string]string{
		"at once":                         headerOf("/", maxHeaderLines+1),
		"of empty lines":                  strings.Repeat("\n", maxHeaderLines+2),
		"with line feeds only":            strings.ReplaceAll(headerOf("/", maxHeaderLines+1), "\r", ""),
		"after another request":           headerOf("/", 1) + "\r\n" + headerOf("/", 4*maxHeaderLines),
		"after another request's body":    headerOf("/", 1) + "Content-Length: 2\r\n\r\n{}" + headerOf("/", 4*maxHeaderLines),
		"after a body of unknown length":  headerOf("/", 1) + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + headerOf("/", 4*maxHeaderLines),
		"after an empty line of a client": headerOf("/", 1) + "\r\n\r\n" + headerOf("/", 4*maxHeaderLines),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, address)
			c.send(sent)
			if strings.HasPrefix(name, "after") {
				require.Equal(t, 404, c.status())
			}
			require.Equal(t, 431, c.status())
			_, err := c.responses.ReadByte()
			require.ErrorIs(t, err, io.EOF, "the connection is closed")
			requireServed(t, address, "")
		})
	}
}

func TestHeaderHasAtMost16KiB(t *testing.T) {
	t.Parallel()
	_, address := serve(t)
	for size, want := range map[int]int{maxHeaderBytes - 512: 200, maxHeaderBytes + 512: 431} {
		c := dial(t, address)
		c.send("GET /ok HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", size) + "\r\n\r\n")
		res, err := http.ReadResponse(c.responses, nil) // without its body: after status 431 the server may reset the connection
		require.NoError(t, err)
		require.Equal(t, want, res.StatusCode, "%d", size)
	}
}

func TestHeaderLinesAreCountedPerHeader(t *testing.T) {
	t.Parallel()
	_, address := serve(t)
	c := dial(t, address)
	request := func(body string) string {
		return headerOf("/ok", maxHeaderLines-1) + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
	}
	for _, lines := range []int{0, 100, 300, 1000, 20_000} {
		body := strings.Repeat("\n", lines) + `{"name":"a"}` + strings.Repeat("\r\n", lines)
		c.send(request(body))
		require.Equal(t, 200, c.status(), "%d", lines)
	}
	c.send(strings.Repeat(request(`{"name":"a"}`), 3))
	for range 3 {
		require.Equal(t, 200, c.status(), "pipelined requests too")
	}
}

// Connections that send large headers and do not finish them are closed, the oldest first. Clients that
// send their headers at once are served.
func TestHalfSentHeadersUseBoundedMemory(t *testing.T) {
	t.Parallel()
	const limit, attackers, size = 64 << 10, 40, 15 << 10
	s, address := serve(t)
	memory := &s.headers
	memory.max = limit
	used := func() int {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.used
	}
	small := make([]*client, 10)
	for i := range small {
		small[i] = dial(t, address)
		small[i].send(headerOf("/", 1) + "X-Small: " + strings.Repeat("a", smallHeader-200))
	}
	var large []*client
	for range attackers {
		c := dial(t, address)
		c.send(headerOf("/", 1) + "X-Large: " + strings.Repeat("a", size))
		large = append(large, c)
		require.LessOrEqual(t, used(), limit)
		requireServed(t, address, "X-Large: "+strings.Repeat("a", 10_000)+"\r\n")
	}
	for _, c := range large[:attackers-limit/size-1] {
		_, err := c.responses.ReadByte()
		require.Error(t, err, "the connection was closed")
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	for _, c := range small {
		c.send("\r\n\r\n")
		require.Equal(t, 404, c.status(), "small headers may take their time")
	}
	for _, c := range large {
		require.NoError(t, c.conn.Close())
	}
	require.Eventually(t, func() bool { return used() == 0 }, waitAtMost, 5*time.Millisecond, "everything is released")
	require.Zero(t, memory.holders.Len())
}

// A client cannot send HTTP/2 frames without end: the connection is closed after the first.
func TestHTTP2IsDisabled(t *testing.T) {
	t.Parallel()
	_, address := serve(t)
	c := dial(t, address)
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	c.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
	response, err := io.ReadAll(c.responses)
	require.NoError(t, err)
	require.Contains(t, string(response), "HTTP/1.1 404")
	require.Contains(t, string(response), "Connection: close")
	requireServed(t, address, "")
}

func TestClientNetworkIsAddressOrIPv6Subnet(t *testing.T) {
	t.Parallel()
	require.Equal(t, ClientNetwork("2001:db8:1:2::1"), ClientNetwork("2001:db8:1:2:ffff::2"))
	require.NotEqual(t, ClientNetwork("2001:db8:1:2::1"), ClientNetwork("2001:db8:1:3::1"))
	require.NotEqual(t, ClientNetwork("203.0.113.9"), ClientNetwork("203.0.113.10"))
	require.Equal(t, ClientNetwork(""), ClientNetwork("no address"))
}

// A client that does not read makes the kernel keep only a small part of the response, and nothing after the connection is closed.
func TestUnreadResponseUsesLittleMemoryOfTheKernel(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	ended := make(chan struct{})
	s := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
		for range 8 << 20 / 4096 {
			n, err := w.Write(make([]byte, 4096))
			if err != nil {
				return
			}
			written.Add(int64(n))
		}
	}), 1000, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	go func() { _ = s.Serve(l) }() // until Close
	smallWindow := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := smallWindow.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-ended
	require.Less(t, written.Load(), int64(256<<10))
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
	_, err = io.Copy(io.Discard, conn)
	require.ErrorIs(t, err, syscall.ECONNRESET, "the kernel has discarded what the client did not read")
}
