package fn

import (
	"container/list"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	maxHeaderLines = 100
	// maxRead is how many bytes are read at once where the end of the header or body is
	// not known: no more than that of the next request is read without being counted.
	maxRead    = 512
	readBuffer = 4 << 10 // of net/http: only a body of known length is read in larger pieces

	// The bytes of headers that are being read, of all connections of a server together.
	// Smaller headers count for nothing.
	maxHeaderMemory = 8 << 20
	smallHeader     = 4 << 10
)

// errHeaderLines is a net.OpError, to which net/http sends no response itself.
var errHeaderLines = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("a header of too many lines")}

const headerRefusal = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Content-Length: 45\r\nConnection: close\r\n\r\na request must have at most 100 header lines\n"

// headerMemory bounds the bytes of the headers that are being read. Where there are too
// many, the connections that have held some for longest are closed: a header that is sent
// as it should be is there within moments.
type headerMemory struct {
	max int

	mu      sync.Mutex
	used    int
	holders list.List // of *headerConn, the one that has held some for longest first
}

// heldHeader is what one connection holds; under headerMemory.mu.
type heldHeader struct {
	bytes  int
	place  *list.Element // nil while it holds nothing
	closed bool          // by headerMemory; it holds nothing any more
}

// hold says that the connection holds n bytes, which is 0 when its header is read.
func (m *headerMemory) hold(c *headerConn, n int) {
	m.mu.Lock()
	var surplus []*headerConn
	if !c.held.closed {
		m.set(c, n)
	}
	for m.used > m.max {
		longest := m.holders.Front().Value.(*headerConn)
		m.set(longest, 0)
		longest.held.closed = true
		surplus = append(surplus, longest)
	}
	m.mu.Unlock()
	for _, c := range surplus {
		_ = c.Close() // its server finds out
	}
}

// set is hold without a bound; mu is held.
func (m *headerMemory) set(c *headerConn, n int) {
	m.used += n - c.held.bytes
	c.held.bytes = n
	switch {
	case n > 0 && c.held.place == nil:
		c.held.place = m.holders.PushBack(c)
	case n == 0 && c.held.place != nil:
		m.holders.Remove(c.held.place)
		c.held.place = nil
	}
}

// headerListener gives connections whose headers have few lines, and take little memory
// together: net/http bounds only their bytes, and keeps about 70 for each line of 5.
type headerListener struct {
	net.Listener
	memory *headerMemory
	open   *connectionLimiter
}

// Accept is net.Listener's.
func (l headerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headerConn{Conn: conn, memory: l.memory, open: l.open}, nil
}

// headerConn counts the lines and bytes of each header while they are read. Its server reads from
// it in one goroutine at a time, and calls state in between.
type headerConn struct {
	net.Conn
	memory   *headerMemory
	open     *connectionLimiter
	held     heldHeader
	header   headerLines
	hijacked bool
	refused  bool
}

// headerLines is what is known of the header of one request.
type headerLines struct {
	ended   bool // what is read now is the body
	lines   int  // that have ended
	started bool // the header has had a line that is not empty
	bytes   int
	held    bool // some of the memory of all headers
	length  int  // of the line that has not ended
	last    byte // of what was read
}

// Close is net.Conn's. A WebSocket counts as open until then, although its connection is no longer the
// server's.
func (c *headerConn) Close() error {
	c.open.remove(c)
	return c.Conn.Close()
}

// state is for the server's ConnState.
func (c *headerConn) state(s http.ConnState) {
	if c.header.held { // in these states it is complete, or will never be
		c.memory.hold(c, 0)
		c.header.held = false
	}
	switch s {
	case http.StateActive: // the header was read, and the handler is about to be called
		c.header.ended = true
	case http.StateIdle:
		c.header = headerLines{}
	case http.StateHijacked:
		c.hijacked = true
	}
}

// Read is net.Conn's. A client that sends too many lines gets a response, and is cut off a moment
// later: if a connection is closed while there is something to read, the response is lost.
func (c *headerConn) Read(p []byte) (int, error) {
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
	few := c.header.count(p[:n])
	if !c.header.ended && c.header.bytes > smallHeader {
		c.header.held = true
		c.memory.hold(c, c.header.bytes)
	}
	if few {
		return n, err
	}
	c.refused = true
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeDelay)) // fails on a connection that has ended, as the next does
	if _, err := io.WriteString(c.Conn, headerRefusal); err == nil {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // net/http's own response does not follow
		}
		time.Sleep(closeDelay)
	}
	return 0, errHeaderLines
}

// count says whether there are few enough lines.
func (h *headerLines) count(read []byte) bool {
	h.bytes += len(read)
	for _, b := range read {
		if b != '\n' {
			h.length++
			h.last = b
			continue
		}
		empty := h.length == 0 || h.length == 1 && h.last == '\r'
		if empty && h.started {
			h.ended = true
			return true
		}
		h.started = h.started || !empty
		h.length = 0
		if h.lines++; h.lines > 1+maxHeaderLines { // the first is the request's own
			return false
		}
	}
	return true
}
