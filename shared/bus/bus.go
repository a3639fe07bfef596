package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// closeTimeout bounds how long Close waits for the connection to drain.
const closeTimeout = 5 * time.Second

// Bus is one connection to NATS, shared by the whole process. All methods are safe for concurrent use.
// A nil *Bus means that NATS is not configured: its methods do nothing or return an ErrUnavailable. The
// methods that only package trigger calls must not be called on a nil *Bus.
type Bus struct {
	cfg         Config
	log         *slog.Logger
	failedSends atomic.Uint64
	denied      denials

	closing      context.Context // cancelled when Close begins
	beginClosing context.CancelFunc
	dial         sync.Once
	attempted    chan struct{} // closed after the first attempt to connect

	markAttempted func() // closes attempted, once

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup       // Close waits for it; Add and Go only under mu
	nc         *nats.Conn           // the newest; replaced when the client library closes it permanently
	current    *Connection          // nil while disconnected
	connected  chan struct{}        // closed and replaced by each new connection
	pending    map[string]int       // by subject: how many things became due since the last wake-up that was sent
	scheduled  map[string]time.Time // by name of a schedule: until when the schedule is assumed to exist
	unsent     map[wakeUp]bool      // sent again after the next connect
	warnedOld  bool                 // logged that the server has no message schedules

	inboxesMu sync.Mutex
	inboxes   map[inboxKey]*inboxSubscription // only inboxes with followers
}

// Open returns a Bus without network access. The first use connects; lost connections are re-established
// until Close. Without a URL it returns a nil *Bus.
func Open(cfg Config, log *slog.Logger) (*Bus, error) {
	if cfg.URL == "" {
		return nil, nil
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open bus: %w", err)
	}
	b := &Bus{
		cfg: cfg, log: log,
		attempted: make(chan struct{}), connected: make(chan struct{}),
		pending: map[string]int{}, scheduled: map[string]time.Time{}, unsent: map[wakeUp]bool{},
		inboxes: map[inboxKey]*inboxSubscription{},
	}
	b.markAttempted = sync.OnceFunc(func() { close(b.attempted) })
	b.closing, b.beginClosing = context.WithCancel(context.Background())
	b.denied.reset()
	return b, nil
}

// FailedSends counts the failed attempts since Open to send a wake-up, a schedule or a caller notification.
// Until Close the Bus tries again, in one outage for at most maxUnsent of them.
func (b *Bus) FailedSends() uint64 {
	if b == nil {
		return 0
	}
	return b.failedSends.Load()
}

// Close sends pending wake-ups, ends the subscriptions and closes the connection, within a few seconds.
// A second Close does nothing.
func (b *Bus) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.beginClosing()
	b.background.Wait() // each background goroutine ends within a bounded time

	b.mu.Lock()
	nc := b.nc
	b.mu.Unlock()
	if nc == nil {
		return
	}
	closed := nc.StatusChanged(nats.CLOSED)
	if nc.Drain() == nil {
		select {
		case <-closed:
		case <-time.After(closeTimeout):
		}
	}
	nc.Close()
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
