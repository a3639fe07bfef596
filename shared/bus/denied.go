package bus

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// errDenied says that the permissions of our user do not include a subject.
var errDenied = errors.New("the permissions of this user of NATS do not include the subject")

// deniedLimit is how many subjects are remembered at least, the newest, and half
// of how many at most: callers choose some. It is several times what one Publish
// has, so none forgets its own before it has seen them.
const deniedLimit = 4000

// denials remembers to which subjects NATS let us not publish over the present
// connection. The server says so beside the request, which it never answers, so
// without this each would wait until its time is over.
type denials struct {
	mu       sync.Mutex
	subjects map[string]bool
	previous map[string]bool // the deniedLimit before subjects
	changed  chan struct{}   // closed and replaced when there is another one

	total    uint64    // of all connections, and of subscriptions too
	logged   uint64    // total when the newest log line was written
	loggedAt time.Time // when that was
}

// deniedLogEvery is the least time between two log lines about denials: callers
// choose subjects, and must not choose how much is logged.
const deniedLogEvery = time.Minute

// count counts a denial. It returns whether to log this one, and how many since the
// newest log line were not logged.
func (d *denials) count() (unlogged uint64, log bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total++
	if time.Since(d.loggedAt) < deniedLogEvery {
		return 0, false
	}
	unlogged = d.total - d.logged - 1
	d.logged, d.loggedAt = d.total, time.Now()
	return unlogged, true
}

// Denied counts the publications and subscriptions that the permissions of NATS did
// not allow since Open.
func (b *Bus) Denied() uint64 {
	if b == nil {
		return 0
	}
	b.denied.mu.Lock()
	defer b.denied.mu.Unlock()
	return b.denied.total
}

// onAsyncError takes what NATS says beside its answers.
func (b *Bus) onAsyncError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		b.log.Warn("NATS", "error", err)
		return
	}
	if unlogged, log := b.denied.count(); log {
		b.log.Warn("NATS", "error", err, "unlogged", unlogged)
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

// add takes what the server says of a subject that may not be published to, which
// it quotes as Go does.
func (d *denials) add(err error) {
	_, rest, publishing := strings.Cut(err.Error(), "Publish to ")
	quoted, malformed := strconv.QuotedPrefix(rest)
	if !publishing || malformed != nil {
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

// contains says whether a subject is among them, and what is closed when there are more.
func (d *denials) contains(subject string) (bool, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.subjects[subject] || d.previous[subject], d.changed
}
