package bus

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

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

func newBus(t *testing.T, url string) *Bus { return newBusLogging(t, url, io.Discard) }

func newBusLogging(t *testing.T, url string, log io.Writer) *Bus {
	t.Helper()
	b, err := Open(Config{URL: url, Name: t.Name(), Replicas: 1}, slog.New(slog.NewTextHandler(log, nil)))
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

func eventMessage(id string) Message {
	return Message{Subject: "evt.task.succeeded", MsgID: id, Event: newEvent(id)}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func publishAll(t *testing.T, b *Bus, messages ...Message) {
	t.Helper()
	for _, err := range b.Publish(within(t, soon), messages) {
		require.NoError(t, err)
	}
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 3*soon, every, what)
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
