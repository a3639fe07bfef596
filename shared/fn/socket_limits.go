package fn

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
)

// What a client may send over a WebSocket in addition to its messages.
const (
	maxControls    = 200 // pings and pongs in controlsWithin
	controlsWithin = 10 * time.Second
	framingBytes   = 64 << 10 // with each message, in addition to twice the largest message: each part of a message has a header
	closingBytes   = 4 << 20  // after the socket has ended: so many bytes may have been on their way
)

// The errors for a client that sends too many pings, pongs or parts of a message. The library handles
// these frames itself, so nothing else limits them.
var (
	errControls = fmt.Errorf("more than %d pings and pongs within %v", maxControls, controlsWithin)
	errParts    = errors.New("a message in too many parts")
)

// meteredConn is the connection of a socket. It limits the bytes that are read from it.
type meteredConn struct {
	net.Conn
	excess func() // called by a read over the limit

	mu    sync.Mutex
	left  int64 // bytes that may be read
	ended bool  // set by end: allow has no effect
}

// allow sets the limit to n bytes from now on.
func (c *meteredConn) allow(n int64) { c.set(n, false) }

// end sets the limit to n bytes for the rest of the connection.
func (c *meteredConn) end(n int64) { c.set(n, true) }

func (c *meteredConn) set(n int64, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.left, c.ended = n, end
	}
}

// Read is net.Conn's. Over the limit, Read waits for httpserver.CloseDelay and then fails.
func (c *meteredConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	if left <= 0 {
		c.excess()
		time.Sleep(httpserver.CloseDelay)
		return 0, errParts
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left -= int64(n)
	return n, err
}

// hijacker keeps the hijacked connection, for limits and deadlines that the library does not set.
type hijacker struct {
	http.ResponseWriter
	status int
	conn   *meteredConn
}

func (h *hijacker) WriteHeader(status int) {
	h.status = status
	h.ResponseWriter.WriteHeader(status)
}

// Hijack is http.Hijacker's.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = &meteredConn{Conn: conn, left: math.MaxInt64}
	return h.conn, rw, err
}
