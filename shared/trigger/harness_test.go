package trigger

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	soon  = 10 * time.Second // bounds a call, and a third of what bounds a wait for what must happen
	every = 5 * time.Millisecond
)

// broker is a server of the test's own that can be stopped and started again.
type broker struct {
	t      *testing.T
	server *sandbox.NATS
	dir    string
}

func newBroker(t *testing.T) *broker {
	dir := filepath.Join(t.TempDir(), "nats")
	return &broker{t: t, dir: dir, server: sandbox.NATSIn(t, sandbox.NATSOptions{Dir: dir})}
}

func (b *broker) stop() { require.NoError(b.t, b.server.Stop()) }

// start starts the server again at the same URL, with what is in dir.
func (b *broker) start(dir string) {
	b.server = sandbox.NATSIn(b.t, sandbox.NATSOptions{Dir: dir, Port: b.server.Port()})
}

func (b *broker) js() jetstream.JetStream {
	b.t.Helper()
	js, err := jetstream.New(b.conn())
	require.NoError(b.t, err)
	return js
}

func (b *broker) conn() *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect(b.server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(every))
	require.NoError(b.t, err)
	b.t.Cleanup(nc.Close)
	return nc
}

// info is the state of a stream; subjects limits what is counted.
func (b *broker) info(js jetstream.JetStream, stream string) *jetstream.StreamInfo {
	b.t.Helper()
	s, err := js.Stream(b.t.Context(), stream)
	require.NoError(b.t, err)
	info, err := s.Info(b.t.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(b.t, err)
	return info
}

// settled says whether nothing waits for the consumer or for an acknowledgement.
func (b *broker) settled(js jetstream.JetStream, r Route) bool {
	c, err := js.Consumer(b.t.Context(), r.Stream, r.Durable)
	if err != nil {
		return false
	}
	info, err := c.Info(b.t.Context())
	// A consumer just made may say for a moment that nothing is pending.
	return err == nil && info.AckFloor.Stream > 0 && info.NumPending == 0 && info.NumAckPending == 0
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

func newEvent(id string) cloudevents.Event {
	e := cloudevents.NewEvent()
	e.SetID(id)
	e.SetSource("/test")
	e.SetType("sendonce.task.succeeded.v1")
	return e
}

func eventMessage(id string) bus.Message {
	return bus.Message{Subject: "evt.task.succeeded", MsgID: id, Event: newEvent(id)}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func publishAll(t *testing.T, b *bus.Bus, messages ...bus.Message) {
	t.Helper()
	for _, err := range b.Publish(within(t, soon), messages) {
		require.NoError(t, err)
	}
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 3*soon, every, what)
}

// anybody is a sender.
const anybody = "shop"

func acceptance(t *testing.T, id, text string) bus.Acceptance {
	t.Helper()
	e := newEvent(id)
	e.SetType("sendonce.message.accepted.v1")
	e.SetSubject("shop/東京 <1>")
	e.SetTime(time.Date(2026, 11, 20, 12, 0, 0, 5, time.UTC))
	require.NoError(t, e.SetData(cloudevents.ApplicationJSON, map[string]string{"text": text}))
	return bus.Acceptance{Subject: bus.AcceptSubject(anybody, id), Fingerprint: "print of " + text, Event: e}
}

func acceptAll(t *testing.T, b *bus.Bus, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		_, err := b.Accept(within(t, soon), acceptance(t, strconv.Itoa(i), "x"))
		require.NoError(t, err)
	}
}

// function is an event function that records its calls.
type function struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
	busy  int
	peak  int
}

type call struct {
	path, id, user, password string
	header                   http.Header
	body                     string
	at                       time.Time
}

// newFunction answers the nth call (from 1) with answer.
func newFunction(t *testing.T, answer func(w http.ResponseWriter, c call, n int)) *function {
	f := &function{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		c := call{path: r.Method + " " + r.URL.Path, id: r.Header.Get("Ce-Id"), header: r.Header, body: string(body), at: time.Now()}
		c.user, c.password, _ = r.BasicAuth()
		f.mu.Lock()
		f.calls = append(f.calls, c)
		n := len(f.calls)
		f.busy++
		f.peak = max(f.peak, f.busy)
		f.mu.Unlock()
		answer(w, c, n)
		f.mu.Lock()
		f.busy--
		f.mu.Unlock()
	}))
	t.Cleanup(f.Close)
	return f
}

func answering(status int) func(http.ResponseWriter, call, int) {
	return func(w http.ResponseWriter, _ call, _ int) { w.WriteHeader(status) }
}

func (f *function) seen() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// of counts the deliveries of one event.
func (f *function) of(id string) int {
	n := 0
	for _, c := range f.seen() {
		if c.id == id {
			n++
		}
	}
	return n
}

func testRoute() Route {
	return Route{Stream: bus.StreamEvents, Durable: "d", Filters: []string{"evt.>"}, Function: "f", InFlight: 4, AckWait: 2 * time.Second, Timeout: soon}
}

func testConfig(f *function) Config {
	return Config{BaseURL: f.URL, User: "trigger", Password: "token", MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
}

// running is a trigger at work.
type running struct {
	*Trigger
	cancel context.CancelFunc
	ended  chan struct{}
}

func runTrigger(t *testing.T, b *bus.Bus, cfg Config, routes ...Route) *running {
	t.Helper()
	return runTriggerLogging(t, io.Discard, b, cfg, routes...)
}

func runTriggerLogging(t *testing.T, log io.Writer, b *bus.Bus, cfg Config, routes ...Route) *running {
	t.Helper()
	trigger, err := New(b, slog.New(slog.NewTextHandler(log, nil)), cfg, routes)
	require.NoError(t, err)
	r := &running{Trigger: trigger, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		trigger.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r
}

// Counts is what was delivered so far, by durable.
func (t *Trigger) Counts() map[string]RouteCounts {
	counts := map[string]RouteCounts{}
	for _, r := range t.Routes() {
		counts[r.Durable] = r.RouteCounts
	}
	return counts
}

func (r *running) stop() {
	r.cancel()
	<-r.ended
}

// logged is a log that may be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
