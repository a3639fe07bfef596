package sender

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// Messages of Config.Log that a program may replace with its own text.
const (
	// LogConnected (info) is logged after the first successful claim, and after the first one after an outage,
	// then with "away", the duration of the outage.
	LogConnected = "sender: connected"
	// LogNotClaimed (warning) is logged after a failed claim, once for each kind of error in an outage, with
	// the "error".
	LogNotClaimed = "sender: nothing claimed"
	// LogNotReported is LogNotClaimed for reports.
	LogNotReported = "sender: not reported"
	// LogSent (debug) is logged after each send, with "task_id", "phone" with its middle masked, "outcome",
	// and the gateway's "code" and "message".
	LogSent = "sender: sent"
)

// outage selects which errors of repeated calls are logged: the first of each kind. It is not safe for
// concurrent use.
type outage struct {
	since time.Time // zero = the last call succeeded
	seen  map[string]bool
}

// shouldLog records a failed call and reports whether it should be logged.
func (o *outage) shouldLog(err error) bool {
	if o.since.IsZero() {
		o.since, o.seen = time.Now(), map[string]bool{}
	}
	kind := errorKind(err)
	if o.seen[kind] {
		return false
	}
	o.seen[kind] = true
	return true
}

// end records a successful call, and returns the duration of the outage that it ended, or zero.
func (o *outage) end() (lasted time.Duration) {
	if !o.since.IsZero() {
		lasted = time.Since(o.since)
	}
	*o = outage{}
	return lasted
}

// errorKind is equal for errors that differ only in an address or a port.
func errorKind(err error) string {
	var refused *api.Error
	var errno syscall.Errno
	var network net.Error
	switch {
	case errors.As(err, &refused):
		return strconv.Itoa(refused.Status) + " " + refused.Code
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return fmt.Sprintf("%T", err)
}
