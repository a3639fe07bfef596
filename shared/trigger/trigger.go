package trigger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	pullTimeout  = 30 * time.Second // how long one pull request waits for messages
	checkEvery   = 10 * time.Second // between two checks that a stream exists
	setupTimeout = 10 * time.Second
	setupWait    = 250 * time.Millisecond // before a failed setup is retried, then doubled
	setupWaitMax = 10 * time.Second
)

// Config is how the trigger calls functions. A zero field means the default.
type Config struct {
	BaseURL      string // events are posted to {BaseURL}/events/{function}; BaseURL may contain "{function}" too
	User         string // name of a caller with the role trigger, for HTTP Basic authentication
	Password     string
	Concurrency  int           // parallel deliveries of this trigger over all routes; default 64
	Timeout      time.Duration // of one delivery, unless the route has its own; default 1 minute
	MinBackoff   time.Duration // before the second delivery, then doubled; default 1 s
	MaxBackoff   time.Duration // upper limit of the backoff; default 5 minutes
	DrainTimeout time.Duration // for running deliveries when Run ends; default 25 s

	OnDelivery func(Delivery) // called after each delivery, concurrently; may be nil
}

// Delivery is one finished POST.
type Delivery struct {
	Durable  string
	Function string
	Status   int           // of the response; 0 = none
	Took     time.Duration // until the response was read
}

// Trigger delivers messages from streams to functions. Any number may run, and any may be killed.
type Trigger struct {
	bus         *bus.Bus
	log         *slog.Logger
	cfg         Config
	routes      []*route
	client      *http.Client
	slots       chan struct{} // one for each POST in progress, over all routes
	deliveryMax time.Duration // upper limit of one delivery: waiting for a slot, POST and settling

	setupLocks map[string]*sync.Mutex // by stream: one setup at a time
	checkEvery time.Duration

	mu      sync.Mutex
	logged  map[string]bool  // texts that logOnce has logged
	streams map[string]error // by stream: the error of its last setup
}

// New checks cfg and routes without network access.
func New(b *bus.Bus, log *slog.Logger, cfg Config, routes []Route) (*Trigger, error) {
	if b == nil {
		return nil, errors.New("trigger: NATS_URL is not set")
	}
	setDefault(&cfg.Concurrency, 64)
	setDefault(&cfg.Timeout, time.Minute)
	setDefault(&cfg.MinBackoff, time.Second)
	setDefault(&cfg.MaxBackoff, 5*time.Minute)
	setDefault(&cfg.DrainTimeout, 25*time.Second)
	t := &Trigger{bus: b, log: log, cfg: cfg, checkEvery: checkEvery, slots: make(chan struct{}, cfg.Concurrency),
		setupLocks: map[string]*sync.Mutex{}, logged: map[string]bool{}, streams: map[string]error{}}
	for _, name := range b.StreamNames() {
		t.setupLocks[name] = &sync.Mutex{}
	}
	for _, r := range routes {
		added, err := newRoute(r, &cfg)
		if err != nil {
			return nil, fmt.Errorf("trigger: route %s: %w", r.Durable, err)
		}
		if t.setupLocks[r.Stream] == nil {
			return nil, fmt.Errorf("trigger: route %s: %s is not a stream of this service", r.Durable, r.Stream)
		}
		t.routes = append(t.routes, added)
		t.deliveryMax = max(t.deliveryMax, 2*added.Timeout+settleTimeout) // 2: the slot may first be used by another POST
	}
	t.dividePending()
	t.client = &http.Client{
		// A followed redirect would turn the POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: cfg.Concurrency,
			IdleConnTimeout:     time.Minute,
			TLSHandshakeTimeout: 10 * time.Second,
		},
	}
	return t, nil
}

const (
	minPullBytes    = 256 << 10
	maxMessageBytes = 66 << 10 // of an accepted message: data and attributes
)

// dividePending divides half of bus.MaxPending among the routes that fetch several messages at once: the
// server closes a connection with more unread bytes than bus.MaxPending.
func (t *Trigger) dividePending() {
	batched := slices.DeleteFunc(slices.Clone(t.routes), func(r *route) bool { return r.Batch == 0 && r.UnorderedBatch <= 1 })
	for _, r := range batched {
		r.pullBytes = max(bus.MaxPending/2/len(batched), minPullBytes)
	}
}

// Run delivers until ctx ends. Then it stops pulling, waits at most DrainTimeout for running
// deliveries, and returns. On each connect it creates missing streams and consumers and wakes the
// functions of routes with a safety tick, since wake-ups may have been lost.
func (t *Trigger) Run(ctx context.Context) {
	// work is the context of deliveries. It ends DrainTimeout after ctx.
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
	running.Go(func() { t.bus.ServeHeaders(ctx) })
	running.Wait()
	t.client.CloseIdleConnections()
}

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

// maintainStream creates one stream on each connect and whenever the stream is missing.
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

// waitUntilMissing returns when a stream no longer exists or ctx ends.
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

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// ensure creates or changes a stream. If NATS refuses to change a field, ensure logs that once and returns nil.
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

// pull delivers until the connection or the consumer is lost.
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
	if r.Batch > 0 {
		err := t.pullBatches(ctx, work, conn, consumer, r)
		if conn.Lost() {
			return bus.ErrNotConnected
		}
		return err
	}
	pull := t.pullOnce
	if r.UnorderedBatch > 1 {
		pull = t.pullUnordered
	}
	for {
		err := pull(ctx, work, consumer, r, running)
		if conn.Lost() {
			return bus.ErrNotConnected
		}
		if err != nil {
			return err
		}
	}
}

// setUp creates or updates the stream of r, and creates its consumer if it is missing.
func (t *Trigger) setUp(ctx context.Context, conn *bus.Connection, r *route) (jetstream.Consumer, error) {
	if r.Batch > 0 {
		if err := conn.CheckPriorityGroups(); err != nil {
			return nil, err
		}
		if !conn.Strict() {
			t.logOnce(bus.ErrOldServer.Error() + ": upgrade it; what was accepted is saved")
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

// logMismatch logs a mismatch once and returns any other error.
func (t *Trigger) logMismatch(err error) error {
	var mismatch *bus.MismatchError
	if !errors.As(err, &mismatch) {
		return err
	}
	t.logOnce(err.Error())
	return nil
}

// logOnce logs a text as an error, once.
func (t *Trigger) logOnce(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.logged[text] {
		t.logged[text] = true
		t.log.Error(text)
	}
}

// pullOnce fetches only as many messages as can be delivered now: a message that waits here uses up its AckWait.
func (t *Trigger) pullOnce(ctx, work context.Context, consumer jetstream.Consumer, r *route, running *sync.WaitGroup) error {
	r.setDeadline(t.deliveryMax)
	room, err := r.acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { r.release(room) }()
	r.setDeadline(pullTimeout)
	bounded, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	batch, err := consumer.Fetch(room, jetstream.FetchContext(bounded))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		room--
		running.Go(func() {
			defer r.release(1)
			t.deliver(work, r, msg)
		})
	}
	err = batch.Error()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (t *Trigger) logger(r *route, meta *jetstream.MsgMetadata) *slog.Logger {
	return t.log.With("route", r.Durable, "function", r.Function, "event", deliveryID(meta, &r.Route), "attempt", meta.NumDelivered)
}
