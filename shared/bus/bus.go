package bus

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bus is one connection to NATS, shared by the whole process. All methods are safe for concurrent use.
// A nil *Bus means that NATS is not configured: its methods do nothing or return an ErrUnavailable. The
// methods that only package trigger calls must not be called on a nil *Bus.
type Bus struct {
	cfg         Config
	log         *slog.Logger
	streams     []jetstream.StreamConfig // ours; AllowMsgSchedules is not set
	failedSends atomic.Uint64
	denied      denials

	closing      context.Context // cancelled when Close begins
	beginClosing context.CancelFunc
	dial         sync.Once
	attempted    chan struct{} // closed after the first attempt to connect

	markAttempted func() // closes attempted, once
	resendUnsent  func() // sends all unsent wake-ups again

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup       // Close waits for these goroutines; Add and Go only under mu
	nc         *nats.Conn           // replaced when the client library closes it permanently
	current    *Connection          // nil while disconnected
	connected  chan struct{}        // each new connection closes this channel and replaces it
	pending    map[string]int       // by subject: the sum of n of the calls of Wake since the last wake-up was sent
	scheduled  map[string]time.Time // by name of a schedule: until when the schedule is assumed to exist
	unsent     map[wakeUp]bool      // sent again after the next connect
	warnedOld  bool                 // logged that the server has no message schedules

	inboxesMu sync.Mutex
	inboxes   map[inboxKey]*inboxSubscription // only inboxes with followers
}

// wakeUp is a wake-up, a schedule or a caller notification, to be sent again if it could not be sent.
type wakeUp struct {
	subject string
	at      time.Time // of a schedule; else zero
	caller  string    // of a notification; else ""
}

// FailedSends counts the failed attempts since Open to send a wake-up, a schedule or a caller notification.
// Until Close the Bus tries to send them again, but at most maxUnsent of them after one outage.
func (b *Bus) FailedSends() uint64 {
	if b == nil {
		return 0
	}
	return b.failedSends.Load()
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

// spawn runs f in a goroutine that Close waits for. After Close it returns false and does not run f.
func (b *Bus) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.background.Go(f)
	return true
}
