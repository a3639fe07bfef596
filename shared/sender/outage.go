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

// Log messages of Config.Log. A program can recognise them in its slog.Handler, to print its own text.
const (
	// LogConnected (info) is logged after the first successful claim, and after the first successful claim that
	// follows an outage. After an outage, the attribute "away" is the duration of the outage.
	LogConnected = "sender: connected"
	// LogClaimFailed (warning) is logged after a failed claim, once for each kind of error in an outage. The attribute
	// "error" is the error.
	LogClaimFailed = "sender: claim failed"
	// LogReportFailed (warning) is logged when reports must be sent again, because the call failed or the server
	// refused them temporarily. It is logged once for each kind of error in an outage. The attributes are "error", and
	// "reports": the number of these reports.
	LogReportFailed = "sender: report failed"
	// LogSent (debug) is logged after each attempt that is in the journal, whatever its outcome is. The attributes are
	// "task_id", "phone" (the middle is masked), "outcome", and the gateway's "code" and "message".
	LogSent = "sender: sent"
)

// outage tracks failed calls until the next successful call, so that each kind of error is logged once until then. It
// is not safe for concurrent use.
type outage struct {
	since time.Time       // of the first failed call; zero = the last call succeeded
	seen  map[string]bool // by errorKind
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

// end records a successful call. It returns the duration of the outage that the call ended, or 0.
func (o *outage) end() (lasted time.Duration) {
	if !o.since.IsZero() {
		lasted = time.Since(o.since)
	}
	*o = outage{}
	return lasted
}

// errorKind returns a key that is the same for errors of the same kind: those that differ only in details, such as an
// address or a port.
func errorKind(err error) string {
	var apiErr *api.Error
	var errno syscall.Errno
	var netErr net.Error
	switch {
	case errors.As(err, &apiErr):
		return strconv.Itoa(apiErr.Status) + " " + apiErr.Code
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout"
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return fmt.Sprintf("%T", err)
}
