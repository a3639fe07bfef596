package bus

import (
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/task"
)

var errDenied = errors.New("the permissions of this NATS user do not include the subject")

// deniedLimit bounds the memory, since callers choose subjects: denials has the newest 4000 to 8000 denied
// subjects. A Publish has at most 2000 messages, so it always finds its own denials.
const deniedLimit = 4000

// denials records the subjects that NATS denied on the current connection. The server reports a denial
// as an asynchronous error and never replies to the request, which would otherwise wait for its
// timeout.
type denials struct {
	mu       sync.Mutex
	subjects map[string]bool
	previous map[string]bool // the deniedLimit subjects before subjects
	changed  chan struct{}   // closed and replaced by each new denial

	total uint64         // since Open, subscriptions included
	lines loglimit.Limit // callers choose subjects but must not control the log volume
}

// Denied counts the publications and subscriptions since Open that NATS denied.
func (b *Bus) Denied() uint64 {
	if b == nil {
		return 0
	}
	b.denied.mu.Lock()
	defer b.denied.mu.Unlock()
	return b.denied.total
}

// onAsyncError handles errors that the server reports outside of replies.
func (b *Bus) onAsyncError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		b.log.Warn("NATS reported an error", "error", err)
		return
	}
	b.denied.mu.Lock()
	b.denied.total++
	unlogged, logNow := b.denied.lines.Next()
	b.denied.mu.Unlock()
	if logNow {
		b.log.Warn("NATS reported an error", "error", task.MaskNumbers(err.Error()), "unlogged", unlogged) // the error has the subject, which may be a phone number
	}
	b.denied.add(err)
}

func (d *denials) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subjects, d.previous = map[string]bool{}, nil
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
}

// add records the subject of a "Permissions Violation for Publish" error, which quotes it as Go does.
func (d *denials) add(err error) {
	_, rest, _ := strings.Cut(err.Error(), "Publish to ")
	quoted, malformed := strconv.QuotedPrefix(rest)
	if malformed != nil { // also without "Publish to"
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
