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

// Messages of Config.Log that a program may show in words of its own.
const (
	// LogConnected (info) follows the first claim that the service answers, and the
	// first one after an outage; then it has "away", how long that was.
	LogConnected = "sender: connected"
	// LogNotClaimed (warning) follows a claim that failed, once for each kind of
	// failure of an outage; it has the "error".
	LogNotClaimed = "sender: nothing claimed"
	// LogNotReported is LogNotClaimed for reports.
	LogNotReported = "sender: not reported"
	// LogSent (debug) follows each send: "task_id", "phone" with its middle hidden,
	// "outcome", and "code" and "message" as the gateway gave them.
	LogSent = "sender: sent"
)

// outage says which failures of calls that are repeated are worth a log line:
// the first of each kind. It is not safe for concurrent use.
type outage struct {
	since time.Time // zero = there is none
	seen  map[string]bool
}

// isNew notes a failed call and says whether it should be logged.
func (o *outage) isNew(err error) bool {
	if o.since.IsZero() {
		o.since, o.seen = time.Now(), map[string]bool{}
	}
	kind := kindOf(err)
	if o.seen[kind] {
		return false
	}
	o.seen[kind] = true
	return true
}

// end notes a call that succeeded, and returns how long the outage took; zero
// when there was none.
func (o *outage) end() (lasted time.Duration) {
	if !o.since.IsZero() {
		lasted = time.Since(o.since)
	}
	*o = outage{}
	return lasted
}

// kindOf is equal for failures that differ in a port or an address only.
func kindOf(err error) string {
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
