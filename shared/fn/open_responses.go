package fn

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// openResponses are the responses to visitors who are not logged in that are being written, the oldest first.
type openResponses struct {
	mu      sync.Mutex
	writers []http.ResponseWriter
}

func (o *openResponses) add(w http.ResponseWriter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writers = append(o.writers, w)
}

func (o *openResponses) remove(w http.ResponseWriter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writers = slices.DeleteFunc(o.writers, func(other http.ResponseWriter) bool { return other == w })
}

// abortOldest makes the writes of the oldest response fail, so that clients that read slowly cannot keep others from
// the login.
func (o *openResponses) abortOldest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.writers) > 0 {
		_ = http.NewResponseController(o.writers[0]).SetWriteDeadline(time.Now()) // fails on a connection that has ended
		o.writers = o.writers[1:]
	}
}
