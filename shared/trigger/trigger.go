package trigger

import (
	"cmp"
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
	pullTimeout    = 30 * time.Second // how long one pull request waits for messages
	checkEvery     = 10 * time.Second // between two checks that a stream exists
	wakeCheckEvery = time.Minute      // between two checks that WAKE stores messages
	settleTimeout  = 10 * time.Second // for the ack, nak or term of a message or a batch, including retries after a reconnect
)

// Trigger delivers messages from streams to functions. Any number may run, and any may be killed.
type Trigger struct {
	bus         *bus.Bus
	log         *slog.Logger
	cfg         Config
	routes      []*route
	client      *http.Client
	slots       chan struct{} // one for each POST in progress, over all routes
	deliveryMax time.Duration // deadline of one delivery: waiting for a slot, POST and settling

	setupLocks     map[string]*sync.Mutex // by stream: one setup at a time
	checkEvery     time.Duration
	wakeCheckEvery time.Duration

	mu          sync.Mutex
	logged      map[string]bool  // texts that logOnce has logged
	streams     map[string]error // by stream: the error of its last setup
	wakeFailure error            // of the last check whether WAKE stores messages; nil if it does
}

// New checks cfg and routes without network access.
func New(b *bus.Bus, log *slog.Logger, cfg Config, routes []Route) (*Trigger, error) {
	if b == nil {
		return nil, errors.New("trigger: NATS_URL is not set")
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 64)
	cfg.Timeout = cmp.Or(cfg.Timeout, time.Minute)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, time.Second)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 5*time.Minute)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 25*time.Second)
	t := &Trigger{bus: b, log: log, cfg: cfg, checkEvery: checkEvery, wakeCheckEvery: wakeCheckEvery, slots: make(chan struct{}, cfg.Concurrency),
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
		t.deliveryMax = max(t.deliveryMax, 2*added.Timeout+settleTimeout) // 2: another POST may use the slot first
	}
	t.setPullBytes()
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

// setPullBytes divides half of bus.MaxPending among the routes with batches, but gives each at least
// minPullBytes. The server closes a connection with more unread bytes than bus.MaxPending.
func (t *Trigger) setPullBytes() {
	batched := slices.DeleteFunc(slices.Clone(t.routes), func(r *route) bool { return r.Batch == 0 && r.UnorderedBatch <= 1 })
	for _, r := range batched {
		r.pullBytes = max(bus.MaxPending/2/len(batched), minPullBytes)
	}
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

func (t *Trigger) logger(r *route, meta *jetstream.MsgMetadata) *slog.Logger {
	return t.log.With("route", r.Durable, "function", r.Function, "event", messageID(meta, &r.Route), "attempt", meta.NumDelivered)
}
