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
	// maxRead is the size of a read while the end of the header or body is not known. A read may
	// include the beginning of the next request, so at most that many bytes of it are not counted.
	maxRead    = 512
	readBuffer = 4 << 10 // the buffer of net/http: only a body of known length is read in larger pieces

	// maxHeaderMemory limits the bytes of the headers that all connections of a server are
	// sending. Headers up to smallHeader are not counted.
	maxHeaderMemory = 8 << 20
	smallHeader     = 4 << 10
)

// errHeaderLines is a net.OpError, to which net/http sends no response itself.
var errHeaderLines = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("a header of too many lines")}

const headerRefusal = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Content-Length: 45\r\nConnection: close\r\n\r\na request must have at most 100 header lines\n"

// headerMemory limits the bytes of the headers that are being read. Above the limit it closes
// the connections whose headers have taken longest: an honest client sends its header within
// moments.
type headerMemory struct {
	max int

	mu      sync.Mutex
	used    int
	holders list.List // of *headerConn, in the order in which they began to use memory
}

// heldHeader is what one connection uses of headerMemory, whose mu protects it.
type heldHeader struct {
	bytes   int
	element *list.Element // of holders; nil while bytes is 0
	closed  bool          // by headerMemory; bytes stays 0
}

// hold sets the bytes that the connection uses: 0 when its header has been read.
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
		_ = c.Close() // the server sees it at its next read
	}
}

// set is hold without the limit; mu must be held.
func (m *headerMemory) set(c *headerConn, n int) {
	m.used += n - c.held.bytes
	c.held.bytes = n
	switch {
	case n > 0 && c.held.element == nil:
		c.held.element = m.holders.PushBack(c)
	case n == 0 && c.held.element != nil:
		m.holders.Remove(c.held.element)
		c.held.element = nil
	}
}

// headerListener limits the lines of each header, and the memory of all headers: net/http limits
// only the bytes of each, and uses about 70 bytes of memory for a line of 5 bytes.
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
	ended   bool // the next bytes are the body's
	lines   int  // that have ended
	started bool // the header has had a line that is not empty
	bytes   int
	held    bool // bytes is counted by headerMemory
	length  int  // of the current line
	last    byte // of the current line
}

// Close is net.Conn's. A WebSocket counts as open until then, although its connection is no longer the
// server's.
func (c *headerConn) Close() error {
	c.open.remove(c)
	return c.Conn.Close()
}

// state is for the server's ConnState.
func (c *headerConn) state(s http.ConnState) {
	if c.header.held { // in each state the header is complete, or never will be
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

// Read is net.Conn's. A client that sends too many lines gets a response, and its connection
// is closed after closeDelay: closing it while unread bytes arrive would lose the response.
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
	withinLimit := c.header.count(p[:n])
	if !c.header.ended && c.header.bytes > smallHeader {
		c.header.held = true
		c.memory.hold(c, c.header.bytes)
	}
	if withinLimit {
		return n, err
	}
	c.refused = true
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeDelay)) // if it fails, so does the write
	if _, err := io.WriteString(c.Conn, headerRefusal); err == nil {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // so that net/http can send no second response
		}
		time.Sleep(closeDelay)
	}
	return 0, errHeaderLines
}

// count counts the lines in read, and reports whether the header is within maxHeaderLines.
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
		if h.lines++; h.lines > 1+maxHeaderLines { // 1 for the request line
			return false
		}
	}
	return true
}
