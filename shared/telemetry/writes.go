package telemetry

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	maxWrites    = 32              // concurrent responses; each keeps its text in memory
	writeTimeout = 5 * time.Second // of one response
)

// writes are the responses that are being written. If there are too many, the oldest is ended: its
// client has had most time to read.
type writes struct {
	mu  sync.Mutex
	all []*http.ResponseController // oldest first
}

// begin limits the time of a response. The caller must call end before its handler returns.
func (w *writes) begin(response *http.ResponseController) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	_ = response.SetWriteDeadline(now.Add(writeTimeout)) // an error, here or below, means that the connection has ended
	if len(w.all) == maxWrites {
		_ = w.all[0].SetWriteDeadline(now)
		w.all = slices.Delete(w.all, 0, 1)
	}
	w.all = append(w.all, response)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = slices.DeleteFunc(w.all, func(other *http.ResponseController) bool { return other == response })
	}
}
