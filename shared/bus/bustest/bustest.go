// Package bustest has the helpers that the tests of bus and trigger share: a NATS server for each test, events,
// and bounded waits. It does not import bus, because the tests of bus use it.
package bustest

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// Soon is the usual time limit of one call in a test. The function Eventually waits three times as long.
const Soon = 30 * time.Second

// Poll is the time between two checks of a condition.
const Poll = 5 * time.Millisecond

// Broker is a NATS server that can be stopped and started again.
type Broker struct {
	t      *testing.T
	Server *natsserver.Server
	Dir    string              // with the data of the server that was started first
	js     jetstream.JetStream // nil before the first call of JS
}

func NewBroker(t *testing.T) *Broker {
	return NewBrokerWith(t, natsserver.Options{Dir: filepath.Join(t.TempDir(), "nats")})
}

func NewBrokerWith(t *testing.T, options natsserver.Options) *Broker {
	return &Broker{t: t, Dir: options.Dir, Server: natsserver.New(t, options)}
}

func (b *Broker) URL() string { return b.Server.URL() }

func (b *Broker) Stop() { require.NoError(b.t, b.Server.Stop()) }

// Start starts the server again at the same URL with the data in dir, and without the other options of NewBrokerWith,
// such as users.
func (b *Broker) Start(dir string) {
	b.Server = natsserver.New(b.t, natsserver.Options{Dir: dir, Port: b.Server.Port()})
}

// Password is the password of all users, if the server has users.
const Password = "secret"

// URLAs returns the address of the server with the name and Password of a user.
func (b *Broker) URLAs(user string) string {
	u, err := url.Parse(b.URL())
	require.NoError(b.t, err)
	u.User = url.UserPassword(user, Password)
	return u.String()
}

// Conn returns a connection that reconnects after Start.
func (b *Broker) Conn() *nats.Conn {
	b.t.Helper()
	return b.connect(b.URL())
}

// ConnAs is Conn with the credentials of a user and the prefix of the user's reply subjects.
func (b *Broker) ConnAs(user, replyPrefix string) *nats.Conn {
	b.t.Helper()
	return b.connect(b.URLAs(user), nats.CustomInboxPrefix(replyPrefix))
}

func (b *Broker) connect(url string, options ...nats.Option) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(Poll))...)
	require.NoError(b.t, err)
	b.t.Cleanup(nc.Close)
	return nc
}

// JS returns the JetStream API. All calls share one connection, which reconnects after Start.
func (b *Broker) JS() jetstream.JetStream {
	b.t.Helper()
	if b.js == nil {
		var err error
		b.js, err = jetstream.New(b.Conn())
		require.NoError(b.t, err)
	}
	return b.js
}

// Stream looks up a stream.
func (b *Broker) Stream(name string) jetstream.Stream {
	b.t.Helper()
	s, err := b.JS().Stream(b.t.Context(), name)
	require.NoError(b.t, err)
	return s
}

// ChangeStream changes the configuration of a stream.
func (b *Broker) ChangeStream(name string, change func(*jetstream.StreamConfig)) {
	b.t.Helper()
	config := b.Stream(name).CachedInfo().Config
	change(&config)
	_, err := b.JS().UpdateStream(b.t.Context(), config)
	require.NoError(b.t, err)
}

// Info returns the state of a stream, with the number of messages of each subject.
func (b *Broker) Info(stream string) *jetstream.StreamInfo {
	b.t.Helper()
	info, err := b.Stream(stream).Info(b.t.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(b.t, err)
	return info
}

// Event returns an event of a task, without data, with this id.
func Event(id string) cloudevents.Event {
	e := cloudevents.NewEvent()
	e.SetID(id)
	e.SetSource("/test")
	e.SetType("sendonce.task.succeeded.v1")
	return e
}

// AcceptedEvent returns the event of an accepted message.
func AcceptedEvent(t *testing.T, id, text string) cloudevents.Event {
	t.Helper()
	e := Event(id)
	e.SetType("sendonce.message.accepted.v1")
	e.SetSubject("shop/東京 <1>")
	e.SetTime(time.Date(2026, 11, 20, 12, 0, 0, 5, time.UTC))
	require.NoError(t, e.SetData(cloudevents.ApplicationJSON, map[string]string{"text": text}))
	return e
}

// Within returns a context that ends after d.
func Within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits for the condition, and fails the test after 90 s. what describes the condition.
func Eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 3*Soon, Poll, what)
}
