package trigger

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// isSettled reports whether the consumer of r has no pending and no unacknowledged message.
func isSettled(t *testing.T, broker *bustest.Broker, r Route) bool {
	c, err := broker.JS().Consumer(t.Context(), r.Stream, r.Durable)
	if err != nil {
		return false
	}
	info, err := c.Info(t.Context())
	// A new consumer may report for a moment that nothing is pending.
	return err == nil && info.AckFloor.Stream > 0 && info.NumPending == 0 && info.NumAckPending == 0
}

// newBroker starts a server and returns it with a Bus that has created its streams there.
func newBroker(t *testing.T) (*bustest.Broker, *bus.Bus) {
	t.Helper()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	return broker, b
}

func newBus(t *testing.T, url string) *bus.Bus { return openBus(t, bus.Config{URL: url}) }

func openBus(t *testing.T, cfg bus.Config) *bus.Bus {
	t.Helper()
	cfg.Replicas = max(cfg.Replicas, 1)
	b, err := bus.Open(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

func eventMessage(id string) bus.Message {
	return bus.Message{Subject: "evt.task.succeeded", MsgID: id, Event: bustest.Event(id)}
}

func publishAll(t *testing.T, b *bus.Bus, messages ...bus.Message) {
	t.Helper()
	for _, err := range b.Publish(bustest.Within(t, bustest.Soon), messages) {
		require.NoError(t, err)
	}
}

const testSender = "shop"

func acceptance(t *testing.T, id, text string) bus.Acceptance {
	t.Helper()
	return bus.Acceptance{Subject: bus.AcceptSubject(testSender, id), Fingerprint: "print of " + text, Event: bustest.AcceptedEvent(t, id, text)}
}

func acceptAll(t *testing.T, b *bus.Bus, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		_, err := b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, strconv.Itoa(i), "x"))
		require.NoError(t, err)
	}
}

// function is a fake event function that records its calls.
type function struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
	busy  int // calls in progress
	peak  int // highest value of busy
}

type call struct {
	route, id, user, password string // route: method and path
	header                    http.Header
	body                      string
	at                        time.Time
}

// newFunction returns a function that responds to the nth call (from 1) with respond.
func newFunction(t *testing.T, respond func(w http.ResponseWriter, c call, n int)) *function {
	f := &function{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		c := call{route: r.Method + " " + r.URL.Path, id: r.Header.Get("Ce-Id"), header: r.Header, body: string(body), at: time.Now()}
		c.user, c.password, _ = r.BasicAuth()
		f.mu.Lock()
		f.calls = append(f.calls, c)
		n := len(f.calls)
		f.busy++
		f.peak = max(f.peak, f.busy)
		f.mu.Unlock()
		w.Header().Set(FunctionHeader, path.Base(r.URL.Path))
		respond(w, c, n)
		f.mu.Lock()
		f.busy--
		f.mu.Unlock()
	}))
	t.Cleanup(f.Close)
	return f
}

func respondWith(status int) func(http.ResponseWriter, call, int) {
	return func(w http.ResponseWriter, _ call, _ int) { w.WriteHeader(status) }
}

func (f *function) allCalls() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// countOf counts the POSTs of only this event; it leaves out batches.
func (f *function) countOf(id string) int {
	n := 0
	for _, c := range f.allCalls() {
		if c.id == id {
			n++
		}
	}
	return n
}

func testRoute() Route {
	return Route{Stream: bus.StreamEvents, Durable: "d", Filters: []string{"evt.>"}, Function: "f", InFlight: 4, AckWait: 2 * time.Second, Timeout: bustest.Soon}
}

// wakeRoute returns the route of a function's wake-ups, with a safety tick unless tick is 0.
func wakeRoute(function string, tick time.Duration) Route {
	routes := Routes(tick)
	return routes[slices.IndexFunc(routes, func(r Route) bool { return r.Function == function })]
}

func testConfig(f *function) Config {
	return Config{BaseURL: f.URL, User: "trigger", Password: "token", MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
}

// runningTrigger is a trigger whose Run is in progress.
type runningTrigger struct {
	*Trigger
	cancel context.CancelFunc
	ended  chan struct{}
}

func runTrigger(t *testing.T, b *bus.Bus, cfg Config, routes ...Route) *runningTrigger {
	t.Helper()
	return runTriggerLogging(t, io.Discard, b, cfg, routes...)
}

func runTriggerLogging(t *testing.T, log io.Writer, b *bus.Bus, cfg Config, routes ...Route) *runningTrigger {
	t.Helper()
	return run(t, newTrigger(t, log, b, cfg, routes...))
}

func newTrigger(t *testing.T, log io.Writer, b *bus.Bus, cfg Config, routes ...Route) *Trigger {
	t.Helper()
	trigger, err := New(b, slog.New(slog.NewTextHandler(log, nil)), cfg, routes)
	require.NoError(t, err)
	return trigger
}

func run(t *testing.T, trigger *Trigger) *runningTrigger {
	t.Helper()
	r := &runningTrigger{Trigger: trigger, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		trigger.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r
}

// Counts returns the counts of each route, by durable.
func (t *Trigger) Counts() map[string]RouteCounts {
	counts := map[string]RouteCounts{}
	for _, r := range t.Routes() {
		counts[r.Durable] = r.RouteCounts
	}
	return counts
}

func (r *runningTrigger) stop() {
	r.cancel()
	<-r.ended
}
