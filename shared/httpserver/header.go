package httpserver

import (
	"container/list"
	"io"
	"sync"
)

const (
	maxHeaderLines = 100

	// maxHeaderMemory limits the bytes of all headers that a server is reading at once. A header of
	// which at most smallHeader bytes have arrived is not counted.
	maxHeaderMemory = 8 << 20
	smallHeader     = 4 << 10
)

// headerMemory limits the bytes of the headers that are being read. Above the limit it closes the
// connections whose headers have been counted for the longest time. Usual clients send their header at once.
type headerMemory struct {
	max int

	mu      sync.Mutex
	used    int
	holders list.List // of *heldHeader; the header that began to use memory first is at the front
}

// heldHeader is the memory of the header of one connection. headerMemory.mu guards it.
type heldHeader struct {
	conn    io.Closer
	bytes   int
	element *list.Element // of holders; nil while bytes is 0
	closed  bool          // headerMemory has closed the connection; bytes stays 0
}

// hold sets the bytes that the header of a connection uses; 0 = the header is no longer being read.
func (m *headerMemory) hold(h *heldHeader, n int) {
	m.mu.Lock()
	var surplus []io.Closer
	if !h.closed {
		m.set(h, n)
	}
	for m.used > m.max {
		oldest := m.holders.Front().Value.(*heldHeader)
		m.set(oldest, 0)
		oldest.closed = true
		surplus = append(surplus, oldest.conn)
	}
	m.mu.Unlock()
	for _, conn := range surplus {
		_ = conn.Close() // the next read of the server fails
	}
}

// set is hold without the limit; mu must be held.
func (m *headerMemory) set(h *heldHeader, n int) {
	m.used += n - h.bytes
	h.bytes = n
	switch {
	case n > 0 && h.element == nil:
		h.element = m.holders.PushBack(h)
	case n == 0 && h.element != nil:
		m.holders.Remove(h.element)
		h.element = nil
	}
}

// headerCount counts the lines and bytes of one header.
type headerCount struct {
	ended   bool // the next bytes are of the body
	lines   int  // lines that have ended
	started bool // the header has had a line that is not empty
	bytes   int
	held    bool // the connection has called headerMemory.hold for this header
	length  int  // of the current line
	last    byte // of the current line, so far
}

// count counts the bytes and lines in data, and reports whether the header is within maxHeaderLines.
func (h *headerCount) count(data []byte) bool {
	h.bytes += len(data)
	for _, b := range data {
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
