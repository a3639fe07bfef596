package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// closeTimeout bounds how long Close waits for the connection to drain.
const closeTimeout = 5 * time.Second

// Open returns a Bus without network access. The first use connects. Until Close a lost connection is
// established again. If cfg has no URL, Open returns a nil *Bus.
func Open(cfg Config, log *slog.Logger) (*Bus, error) {
	if cfg.URL == "" {
		return nil, nil
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open bus: %w", err)
	}
	b := &Bus{
		cfg: cfg, log: log, streams: streamConfigs(&cfg, false),
		attempted: make(chan struct{}), connected: make(chan struct{}),
		pending: map[string]int{}, scheduled: map[string]time.Time{}, unsent: map[signal]bool{},
		inboxes: map[inboxKey]*inboxSubscription{},
	}
	b.markAttempted = sync.OnceFunc(func() { close(b.attempted) })
	b.resendUnsent = b.resend
	b.closing, b.beginClosing = context.WithCancel(context.Background())
	b.denied.reset()
	return b, nil
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
