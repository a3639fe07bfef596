package bus

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/loglimit"
)

// Bus is one connection to NATS, shared by the whole process. All methods are safe for concurrent use.
// A nil *Bus means that NATS is not configured: its methods do nothing or return an ErrUnavailable. Methods
// that are called only by the package trigger must not be called on a nil *Bus.
type Bus struct {
	cfg         Config
	log         *slog.Logger
	streams     []jetstream.StreamConfig // ours, without AllowMsgSchedules, which depends on the server of each connection
	failedSends atomic.Uint64
	denied      denials
	asyncErrors loglimit.ByKey[string] // by text
	notEvents   loglimit.Limit         // messages in the stream of accepted messages that are no events

	closing      context.Context // cancelled when Close begins
	beginClosing context.CancelFunc
	dial         sync.Once
	attempted    chan struct{} // closed after the first attempt to connect

	markAttempted func() // closes attempted, once
	resendUnsent  func() // the method resend: tries again to send everything in unsent

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup       // Close waits for these goroutines; Add and Go only under mu
	nc         *nats.Conn           // replaced when the client library closes it permanently
	current    *Connection          // nil while disconnected
	connected  chan struct{}        // each new connection closes this channel and replaces it
	pending    map[string]int       // by subject: how many tasks, messages or events became due (see Wake) since the last wake-up was sent
	scheduled  map[string]time.Time // by name of a schedule: until when the schedule is assumed to exist
	unsent     map[signal]bool      // tried again after the next connect, or after resendDelay while connected
	warned     bool                 // logged that the server has no message schedules

	rooms rooms

	inboxesMu sync.Mutex
	inboxes   map[inboxKey]*inboxSubscription // for each user who has a Follower in this process: the subscription to the user's subject
}

// signal is a wake-up, a schedule or a notice that a caller was changed (see NotifyCallerChanged). If it cannot be sent, it is kept in
// Bus.unsent.
type signal struct {
	subject string
	at      time.Time // of a schedule; else zero
	caller  string    // the changed caller; "" for a wake-up or schedule
}

// FailedSends counts how often, since Open, a wake-up, a schedule or a notice that a caller was changed could not be sent. Until
// Close the Bus tries again to send these; of the schedules and the wake-ups of pollers it keeps at most maxUnsent for that.
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
	return b.denied.total.Load()
}

// spawn runs f in a goroutine that Close waits for. Once Close has begun, spawn returns false and does not run f.
func (b *Bus) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.background.Go(f)
	return true
}
