package httpserver

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// OpenResponses are responses that are being written, the oldest first.
type OpenResponses struct {
	mu      sync.Mutex
	writers []http.ResponseWriter
}

// Add adds a response, and returns the number of open responses. Call Remove before the handler returns.
func (o *OpenResponses) Add(w http.ResponseWriter) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writers = append(o.writers, w)
	return len(o.writers)
}

// Remove removes a response.
func (o *OpenResponses) Remove(w http.ResponseWriter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writers = slices.DeleteFunc(o.writers, func(other http.ResponseWriter) bool { return other == w })
}

// AbortOldest makes the writes of the oldest response fail, so that clients that read slowly do not keep others from
// their response. The client of the oldest response has had the most time to read.
func (o *OpenResponses) AbortOldest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.writers) > 0 {
		_ = http.NewResponseController(o.writers[0]).SetWriteDeadline(time.Now()) // fails on a connection that has ended
		o.writers = o.writers[1:]
	}
}
