package fn

import (
	"context"
	"sync"
	"time"
)

// cached is a value that is read when it is needed, at most once a second. Calls that come
// while it is read wait for the result.
type cached[T any] struct {
	read    func(context.Context) (T, error)
	timeout time.Duration // of read

	mu     sync.Mutex
	readAt time.Time
	value  T
	err    error
}

func (c *cached[T]) get() (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) < time.Second {
		return c.value, c.err
	}
	// Not the context of a caller: if that one left, all others would see a failure.
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	c.value, c.err = c.read(ctx)
	c.readAt = time.Now()
	return c.value, c.err
}

// newDatabaseProbe returns a check of the database. It runs at most once a second, so that
// probes do not load the database.
func newDatabaseProbe(ping func(context.Context) error) *cached[struct{}] {
	return &cached[struct{}]{timeout: 2 * time.Second, read: func(ctx context.Context) (struct{}, error) { return struct{}{}, ping(ctx) }}
}
