package trigger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// Trigger delivers messages from streams to functions. It is stateless: any number may run, and any
// may be killed.
type Trigger struct {
	bus         *bus.Bus
	log         *slog.Logger
	cfg         Config
	routes      []*route
	client      *http.Client
	slots       chan struct{} // one for each POST in progress, over all routes
	deliveryMax time.Duration // upper limit of one delivery, with waiting for a slot and settling

	setupLocks map[string]*sync.Mutex // by stream: one setup at a time
	checkEvery time.Duration

	mu      sync.Mutex
	logged  map[string]bool  // texts that logOnce has logged
	streams map[string]error // by stream: the error of its last setup
}

// route is a Route with its state.
type route struct {
	Route
	url   string
	slots chan struct{} // one for each delivery in progress; with UnorderedBatch, one for each fetched group

	pullBytes int // upper limit of the bytes that one pull request returns

	deliveries, acked, retried, deadLettered, setAside, denied atomic.Uint64 // see RouteCounts

	repeat repeat

	inFlight atomic.Int64
	pulling  atomic.Bool
	failure  atomic.Pointer[error]     // why it does not pull
	deadline atomic.Pointer[time.Time] // of the current step; nil = none
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
		t.deliveryMax = max(t.deliveryMax, 2*added.Timeout+settleTimeout) // waiting for another delivery, its own POST, and settling
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
	maxMessageBytes = 66 << 10 // size of an accepted message: data and attributes
)

// dividePending divides half of bus.MaxPending among the routes that fetch several messages at once: the
// server closes a connection with more unread bytes than bus.MaxPending.
func (t *Trigger) dividePending() {
	batched := slices.DeleteFunc(slices.Clone(t.routes), func(r *route) bool { return r.Batch == 0 && r.UnorderedBatch <= 1 })
	for _, r := range batched {
		r.pullBytes = max(bus.MaxPending/2/len(batched), minPullBytes)
	}
}

func setDefault[T int | time.Duration](value *T, d T) {
	if *value <= 0 {
		*value = d
	}
}

func newRoute(r Route, cfg *Config) (*route, error) {
	base := strings.ReplaceAll(cfg.BaseURL, "{function}", r.Function)
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q is not a base URL such as http://localhost:8000", base)
	case r.Stream == "" || r.Durable == "" || len(r.Filters) == 0 || r.Function == "":
		return nil, errors.New("stream, durable, filters and function must be named")
	case r.Batch < 0 || r.BatchWait < 0 || r.UnorderedBatch < 0:
		return nil, errors.New("must have a batch size and wait of at least 0")
	case r.InFlight < 1 && r.Batch == 0:
		return nil, errors.New("must have at least one delivery in flight")
	case r.AckWait < time.Second:
		return nil, errors.New("must wait at least 1s for an acknowledgement")
	case r.TickInterval != 0 && len(r.Filters) != 1:
		return nil, errors.New("must have exactly one filter to tick")
	case r.TickInterval != 0 && r.TickInterval < time.Second:
		return nil, errors.New("must not tick more often than every 1s")
	}
	setDefault(&r.Timeout, cfg.Timeout)
	posts := r.InFlight
	if r.UnorderedBatch > 1 {
		posts = max(r.InFlight/r.UnorderedBatch, 1)
	}
	return &route{Route: r, url: strings.TrimRight(base, "/") + "/events/" + r.Function, slots: make(chan struct{}, posts)}, nil
}

// Run delivers until ctx ends. Then it stops pulling, waits at most DrainTimeout for running
// deliveries, and returns. On each connect it creates missing streams and consumers and wakes the
// functions of routes with a safety tick, since wake-ups may have been lost.
//
// A route depends only on its own stream. A failed setup is retried with growing delays while other
// routes go on.
func (t *Trigger) Run(ctx context.Context) {
	// Deliveries run in work, which ends DrainTimeout after ctx.
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

// runRoute runs one route until ctx ends and restarts it after each error. Then it waits for the route's
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

// maintainStream creates one stream on each connect and whenever it is missing. It covers streams
// without a route too, since only the trigger creates streams.
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

// waitUntilMissing returns when a stream no longer exists, or ctx ends.
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

// ensure creates or changes a stream. What NATS refuses to change is logged once and is no error.
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

// logOnce logs an error that an operator should resolve, once.
func (t *Trigger) logOnce(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.logged[text] {
		t.logged[text] = true
		t.log.Error(text)
	}
}

// pullOnce fetches as many messages as can be delivered now: a message that waits here uses up its AckWait.
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

// acquire waits for one free slot and takes all free ones.
func (r *route) acquire(ctx context.Context) (int, error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for n := 1; ; n++ {
		select {
		case r.slots <- struct{}{}:
		default:
			return n, nil
		}
	}
}

func (r *route) release(n int) {
	for range n {
		<-r.slots
	}
}

func (t *Trigger) logger(r *route, meta *jetstream.MsgMetadata) *slog.Logger {
	return t.log.With("route", r.Durable, "function", r.Function, "event", deliveryID(meta, &r.Route), "attempt", meta.NumDelivered)
}
