package fn

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	maxHeaderLines = 100
	// maxRead is how many bytes are read at once where the end of the header or body is
	// not known: no more than that of the next request is read without being counted.
	maxRead    = 512
	readBuffer = 4 << 10 // of net/http: only a body of known length is read in larger pieces
)

// errHeaderLines is a net.OpError, to which net/http sends no answer itself.
var errHeaderLines = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("a header of too many lines")}

const headerRefusal = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Content-Length: 45\r\nConnection: close\r\n\r\na request must have at most 100 header lines\n"

// headerListener gives connections whose headers have few lines: net/http bounds only
// their bytes, and keeps about 70 for each line of 5.
type headerListener struct{ net.Listener }

// Accept is net.Listener's.
func (l headerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headerConn{Conn: conn}, nil
}

// headerConn counts the lines of each header while they are read. Its server reads from
// it in one goroutine at a time, and calls state in between.
type headerConn struct {
	net.Conn
	header   headerLines
	hijacked bool
	refused  bool
}

// headerLines is what is known of the header of one request.
type headerLines struct {
	ended   bool // what is read now is the body
	lines   int  // that have ended
	started bool // the header has had a line that is not empty
	length  int  // of the line that has not ended
	last    byte // of what was read
}

// state is for the server's ConnState.
func (c *headerConn) state(s http.ConnState) {
	switch s {
	case http.StateActive: // the header was read, and the handler is about to be called
		c.header.ended = true
	case http.StateIdle:
		c.header = headerLines{}
	case http.StateHijacked:
		c.hijacked = true
	}
}

// Read is net.Conn's. A client that sends too many lines is answered, and cut off a moment
// later: if a connection is closed while there is something to read, the answer is lost.
func (c *headerConn) Read(p []byte) (int, error) {
	if len(p) <= readBuffer && !c.hijacked {
		p = p[:min(len(p), maxRead)]
	}
	if c.refused {
		return 0, errHeaderLines // net/http reads again after some errors
	}
	n, err := c.Conn.Read(p)
	if c.header.ended || c.header.count(p[:n]) {
		return n, err
	}
	c.refused = true
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeDelay)) // fails on a connection that has ended, as the next does
	if _, err := io.WriteString(c.Conn, headerRefusal); err == nil {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // net/http's own answer does not follow
		}
		time.Sleep(closeDelay)
	}
	return 0, errHeaderLines
}

// count says whether there are few enough lines.
func (h *headerLines) count(read []byte) bool {
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
