package trigger

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	setupTimeout = 10 * time.Second
	setupWait    = 250 * time.Millisecond // before a failed setup is retried, then doubled
	setupWaitMax = 10 * time.Second
)

// Run delivers until ctx ends. Then Run stops pulling, waits for running deliveries, aborts their POSTs after
// DrainTimeout, and returns. On each connect Run creates or changes the streams, creates missing consumers, and wakes
// the functions of routes with a safety tick, since wake-ups may have been lost.
func (t *Trigger) Run(ctx context.Context) {
	// work is the context of POSTs. It ends DrainTimeout after ctx.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(t.cfg.DrainTimeout, abort) })()
	var running sync.WaitGroup
	for _, r := range t.routes {
		running.Go(func() { t.runRoute(ctx, work, r) })
	}
	for name := range t.setupLocks {
		running.Go(func() { t.maintainStream(ctx, name) })
	}
	running.Go(func() { t.checkWakeStream(ctx) })
	running.Go(func() { t.bus.ServeHeaders(ctx) })
	running.Wait()
	t.client.CloseIdleConnections()
}

var errEnding = errors.New("ending")

// runRoute runs one route, and restarts it after each error, until ctx ends. Then it waits for the route's
// deliveries and publishes a pending repeat.
func (t *Trigger) runRoute(ctx, work context.Context, r *route) {
	var running sync.WaitGroup
	defer t.repeatNow(r)
	defer running.Wait()
	defer r.deadline.Store(nil)
	wait := setupWait
	logged := ""
	for ctx.Err() == nil {
		began := time.Now()
		err := t.pull(ctx, work, r, &running)
		if ctx.Err() != nil {
			r.failure.Store(&errEnding)
			return
		}
		r.failure.Store(&err)
		if time.Since(began) > setupWaitMax {
			wait, logged = setupWait, ""
		}
		if text := err.Error(); text != logged {
			logged = text
			t.log.Warn("a route stopped: restarting it, with growing delays", "route", r.Durable, "error", err)
		}
		r.sleep(ctx, wait)
		wait = min(2*wait, setupWaitMax)
	}
}

// maintainStream creates or changes one stream on each connect and whenever the stream is missing.
func (t *Trigger) maintainStream(ctx context.Context, name string) {
	for ctx.Err() == nil {
		conn, err := t.bus.AwaitConnection(ctx)
		if err != nil {
			return
		}
		connCtx, unbind := conn.UntilLost(ctx)
		for wait := setupWait; connCtx.Err() == nil; {
			if t.ensure(connCtx, conn, name) == nil {
				t.waitUntilMissing(connCtx, conn, name)
				wait = setupWait
				continue
			}
			sleep(connCtx, wait)
			wait = min(2*wait, setupWaitMax)
		}
		unbind()
	}
}

// waitUntilMissing returns when the stream no longer exists or ctx ends.
func (t *Trigger) waitUntilMissing(ctx context.Context, conn *bus.Connection, name string) {
	for ctx.Err() == nil {
		sleep(ctx, t.checkEvery)
		bounded, cancel := context.WithTimeout(ctx, setupTimeout)
		_, err := conn.JetStream().Stream(bounded, name)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return
		}
	}
}

// ensure creates or changes a stream. If NATS refuses to change a field, ensure logs the refusal once and returns
// nil.
func (t *Trigger) ensure(ctx context.Context, conn *bus.Connection, name string) error {
	t.setupLocks[name].Lock()
	defer t.setupLocks[name].Unlock()
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	err := t.logMismatch(t.bus.EnsureStream(ctx, conn, name))
	var streamErr *bus.StreamError
	if errors.As(err, &streamErr) {
		t.logOnce(err.Error())
	}
	t.mu.Lock()
	t.streams[name] = err
	t.mu.Unlock()
	return err
}

// pull delivers the messages of one route until ctx ends, the connection is lost or fetching fails.
func (t *Trigger) pull(ctx, work context.Context, r *route, running *sync.WaitGroup) error {
	r.deadline.Store(nil) // waiting for NATS has no deadline
	conn, err := t.bus.AwaitConnection(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := conn.UntilLost(ctx)
	defer cancel()
	r.setDeadline(2 * setupTimeout) // another route may be setting up the same stream
	consumer, err := t.setUp(ctx, conn, r)
	if err != nil {
		return err
	}
	if r.TickInterval > 0 {
		running.Go(func() { t.bus.Tick(ctx, conn, r.Filters[0], r.Durable, r.TickInterval) })
	}
	r.pulling.Store(true)
	defer r.pulling.Store(false)
	for err == nil && !conn.Lost() {
		if r.Batch > 0 {
			err = t.pullBatches(ctx, work, conn, consumer, r)
		} else {
			err = t.pullUnordered(ctx, work, consumer, r, running)
		}
	}
	if conn.Lost() {
		return bus.ErrNotConnected
	}
	return err
}

// setUp creates or updates the stream of r, and creates the consumer of r if it is missing.
func (t *Trigger) setUp(ctx context.Context, conn *bus.Connection, r *route) (jetstream.Consumer, error) {
	if r.Batch > 0 {
		if err := conn.CheckPriorityGroups(); err != nil {
			return nil, err
		}
		if !conn.Strict() {
			t.logOnce(bus.ErrOldServer.Error() + ": upgrade nats-server; messages that were accepted already are still saved")
		}
	}
	if err := t.ensure(ctx, conn, r.Stream); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	consumer, err := conn.EnsureConsumer(bounded, r.Stream, r.consumer())
	return consumer, t.logMismatch(err)
}

// logMismatch logs once that a stream or consumer differs from the wanted settings, and returns nil. It returns any other
// error.
func (t *Trigger) logMismatch(err error) error {
	var mismatch *bus.MismatchError
	if !errors.As(err, &mismatch) {
		return err
	}
	t.logOnce(err.Error())
	return nil
}
