package bus

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/loglimit"
)

// deniedLimit bounds the memory, since callers of the API choose subjects: denials has at least the newest 4000 and at
// most 8000 denied subjects. That is several times the 500 messages that the relay publishes together, so Publish
// finds the denials of its own messages.
const deniedLimit = 4000

// denials records the subjects that NATS denied on the current connection. The server reports a denial
// as an asynchronous error and never replies. Without this record, the publisher of a denied message would wait
// for its timeout.
type denials struct {
	mu       sync.Mutex
	subjects map[string]bool
	previous map[string]bool // the deniedLimit subjects that were denied before those in subjects
	changed  chan struct{}   // closed and replaced by each new denial

	total atomic.Uint64  // denied publications and subscriptions since Open
	lines loglimit.Limit // limits log lines: callers of the API choose subjects, and could fill the log
}

func (d *denials) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subjects, d.previous = map[string]bool{}, nil
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
}

// add counts a permission violation, and records the subject if it is a "Permissions Violation for Publish", which quotes the
// subject as Go does.
func (d *denials) add(err error) {
	d.total.Add(1)
	_, rest, _ := strings.Cut(err.Error(), "Publish to ")
	quoted, malformed := strconv.QuotedPrefix(rest)
	if malformed != nil { // also an error without "Publish to", such as of a subscription
		return
	}
	subject, malformed := strconv.Unquote(quoted)
	if malformed != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.subjects) >= deniedLimit {
		d.subjects, d.previous = map[string]bool{}, d.subjects
	}
	d.subjects[subject] = true
	close(d.changed)
	d.changed = make(chan struct{})
}

// contains reports whether a subject was denied, and returns a channel that is closed at the next denial.
func (d *denials) contains(subject string) (bool, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.subjects[subject] || d.previous[subject], d.changed
}
