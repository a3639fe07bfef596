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
	maxControls    = 200 // pings and pongs within controlsWithin
	controlsWithin = 10 * time.Second
	framingBytes   = 64 << 10 // while a message is read, beside twice the largest message: each part of a message has a header
	closingBytes   = 4 << 20  // while the socket is being closed: such data was already on its way
)

// The errors for a client that sends too many pings, pongs or parts of a message. The library handles
// all of these itself and does not limit them.
var (
	errControls = fmt.Errorf("more than %d pings and pongs within %v", maxControls, controlsWithin)
	errParts    = errors.New("a message in too many parts")
)

// meteredConn is the connection of a socket. It limits the bytes that are read from it.
type meteredConn struct {
	net.Conn
	excess func() // called by a read after left bytes were read

	mu    sync.Mutex
	left  int64 // bytes that may be read
	ended bool  // set by end: allow has no effect
}

// allow lets n more bytes be read, whatever was left.
func (c *meteredConn) allow(n int64) { c.set(n, false) }

// end lets n more bytes be read until the end of the connection; later calls of allow and end do nothing.
func (c *meteredConn) end(n int64) { c.set(n, true) }

func (c *meteredConn) set(n int64, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.left, c.ended = n, end
	}
}

// Read is net.Conn's. If no bytes are left, Read calls excess, waits for httpserver.CloseDelay and fails.
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

// hijacker is the ResponseWriter for the library. It keeps the status, and the hijacked connection for the limits and
// deadlines that the library does not set.
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
