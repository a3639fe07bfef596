package httpserver

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// maxRead limits one read of a header, or of a body without a known length. Such a read may include the beginning
	// of the next request, whose lines are then not counted: so at most maxRead bytes of each request are not counted.
	maxRead    = 512
	readBuffer = 4 << 10 // size of the buffer of net/http: only a body of known length is read in larger pieces

	// CloseDelay is how long the service waits after the last response before it closes a connection over which the
	// client may still send. If unread bytes arrived at a closed connection, the client might lose this response.
	CloseDelay = 500 * time.Millisecond

	// sendBuffer limits what the kernel keeps of responses for a connection whose client does not read: at most twice this size.
	// Without this limit, it keeps several MiB.
	sendBuffer = 32 << 10
)

// errHeaderLines is a net.OpError because net/http sends no response after such an error.
var errHeaderLines = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("a header of too many lines")}

const headerRefusal = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Content-Length: 45\r\nConnection: close\r\n\r\na request must have at most 100 header lines\n"

// listener limits the lines of each header, and the memory of all headers. net/http limits only the
// bytes of each header, and uses about 70 bytes of memory for a line of 5 bytes.
type listener struct {
	net.Listener
	headers *headerMemory
	limiter *connectionLimiter
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer) // fails only if the connection is closed already
	}
	c := &connection{Conn: conn, headers: l.headers, limiter: l.limiter}
	c.held.conn = c
	return c, nil
}

// connection counts the lines and bytes of each header while the header is read. The server reads
// from the connection in one goroutine at a time, and calls state between reads.
type connection struct {
	net.Conn
	headers  *headerMemory
	limiter  *connectionLimiter
	held     heldHeader
	header   headerCount
	hijacked bool
	refused  bool
}

// Close implements net.Conn. Until Close, the connection of a WebSocket counts as open, although http.Server no
// longer manages it.
func (c *connection) Close() error {
	c.limiter.remove(c)
	return c.Conn.Close()
}

// NetConn returns the connection that c wraps, as that of tls.Conn does.
func (c *connection) NetConn() net.Conn { return c.Conn }

// state is the ConnState of the server.
func (c *connection) state(s http.ConnState) {
	if c.header.held { // in each state the header is complete, or will never be complete
		c.headers.hold(&c.held, 0)
		c.header.held = false
	}
	switch s {
	case http.StateActive: // the header was read, and the handler is about to be called
		c.header.ended = true
	case http.StateIdle:
		c.header = headerCount{}
	case http.StateHijacked:
		c.hijacked = true
	}
}

// Write implements net.Conn. After an error, Close discards what the client has not read.
func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		discardUnsent(c)
	}
	return n, err
}

// Read implements net.Conn. If a header has too many lines, the client gets headerRefusal, and the
// connection is closed after CloseDelay.
func (c *connection) Read(p []byte) (int, error) {
	if len(p) <= readBuffer && !c.hijacked {
		p = p[:min(len(p), maxRead)]
	}
	if c.refused {
		return 0, errHeaderLines // net/http reads again after some errors
	}
	n, err := c.Conn.Read(p)
	if c.header.ended {
		return n, err
	}
	withinLimit := c.header.count(p[:n])
	if !c.header.ended && c.header.bytes > smallHeader {
		c.header.held = true
		c.headers.hold(&c.held, c.header.bytes)
	}
	if withinLimit {
		return n, err
	}
	c.refused = true
	_ = c.Conn.SetWriteDeadline(time.Now().Add(CloseDelay)) // if this fails, the write fails too
	if _, err := io.WriteString(c.Conn, headerRefusal); err == nil {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // so that net/http can send no second response
		}
		time.Sleep(CloseDelay)
	}
	return 0, errHeaderLines
}
