package fn

import (
	"net/http"
	"time"
)

const (
	bodyTimeout       = 10 * time.Second // from the beginning of a call
	defaultTimeout    = 10 * time.Second // of the handler
	unreadBodyTimeout = time.Second      // for the rest of a body that the function does not read
)

// request is the state of one HTTP request, or of one frame of a WebSocket. The function sees only call.
type request struct {
	env   *Env
	w     http.ResponseWriter
	r     *http.Request
	call  Call
	event bool // the route handles events
	start time.Time

	function, route   string // never the raw path: it may hold a phone number
	releaseConnection func() // ends httpserver.KeepConnectionOpen; set once the call has a slot
	bodyRead          bool   // the body was read to its end
	status            int    // 0 until the response is written
	bytes             int    // of the response, so far
	code              string // the error code of a failure
	err               error
}

// limitUnreadBody sets a deadline for the rest of an unread body. net/http reads up to 256 KiB of the
// rest, so that the connection can be used again.
func limitUnreadBody(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadBodyTimeout)) // fails on a connection that has ended
	}
}
