package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store"
)

// Serve serves all functions in this process over TCP, on a fresh database.
func Serve(t *testing.T) *Client {
	t.Helper()
	return ServeOn(t, sandbox.NewDatabase(t))
}

// ServeOn is Serve on a given database; change edits the configuration.
func ServeOn(t *testing.T, databaseURL string, change ...func(*settings.Config)) *Client {
	t.Helper()
	_, h := NewEnv(t, databaseURL, change...)
	return ServeHandler(t, h).Connect(databaseURL)
}

// ServeHandler serves a handler over TCP.
func ServeHandler(t *testing.T, h http.Handler) *Client {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	s := NewClient(t, web.URL)
	s.Host = OwnServer
	return s
}

// NewEnv returns the Env that all functions share, on a database, and a handler of the functions; change edits the
// configuration.
func NewEnv(t *testing.T, databaseURL string, change ...func(*settings.Config)) (*fn.Env, http.Handler) {
	t.Helper()
	cfg := settings.Config{
		DatabaseURL: databaseURL, Username: "admin", Password: "secret", Metrics: "open", EncryptionKeys: sandbox.EncryptionKey, Roles: settings.Roles(sandbox.Roles),
		OutgoingNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // the receivers of tests
	}
	for _, c := range change {
		c(&cfg)
	}
	env, err := fn.NewEnv(cfg, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	h, err := fn.Handler(env, functions.Catalogue()...)
	require.NoError(t, err)
	return env, h
}

var (
	OwnServer = Host{"our server", startOwnServer}
	Framework = Host{"the functions framework", startFramework}
)

// OnBothServers runs a test once on each server.
func OnBothServers(t *testing.T, test func(t *testing.T, h Host)) {
	for _, h := range []Host{OwnServer, Framework} {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// startOwnServer serves in this process, so that the race detector checks the server.
func startOwnServer(t *testing.T, databaseURL, natsURL string) string {
	env, handler := NewEnv(t, databaseURL, WithNATS(t, natsURL), func(cfg *settings.Config) {
		cfg.TaskEvents = store.FinalEvents
		cfg.TwoPhase = settings.TwoPhase{Enabled: natsURL != "", FailOpen: true, Stream: "ACCEPTED", Shards: 2, BatchSize: 100, DedupeWindow: time.Hour}
	})
	l := ListenAt(t, "127.0.0.1:0")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fn.Serve(ctx, env, l, handler) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return "http://" + l.Addr().String()
}

// startFramework starts functions/framework as a process of its own.
func startFramework(t *testing.T, databaseURL, natsURL string) string {
	_, url := ServeByFramework(t, Settings(databaseURL, "NATS_URL="+natsURL, fmt.Sprintf("TWO_PHASE_ENABLED=%t", natsURL != ""), "TWO_PHASE_SHARDS=2")...)
	return url
}

// ServeByFramework starts functions/framework with this environment. It returns the process and its URL.
func ServeByFramework(t *testing.T, env ...string) (*sandbox.Process, string) {
	t.Helper()
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	p := StartProcess(t, sandbox.Build(t, module+"functions/framework"), append(env, fmt.Sprintf("PORT=%d", port)))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, url+"/healthz"), p.Output())
	return p, url
}

// At starts the host on a database, and returns a client of the built-in admin. natsURL is "" for none.
func (h Host) At(t *testing.T, databaseURL, natsURL string) *Client {
	t.Helper()
	s := NewClient(t, h.start(t, databaseURL, natsURL))
	s.Host = h
	return s
}

// Serve is At on a fresh database, without NATS.
func (h Host) Serve(t *testing.T) *Client {
	t.Helper()
	url := sandbox.NewDatabase(t)
	return h.At(t, url, "").Connect(url)
}

// ServeWithNATS is Serve with a NATS server that has all streams. It also returns a connection to that server.
func (h Host) ServeWithNATS(t *testing.T) (*Client, *nats.Conn) {
	t.Helper()
	broker, url := NewNATS(t), sandbox.NewDatabase(t)
	streams, err := bus.Open(bus.Config{URL: broker.URL(), Replicas: 1, AcceptStream: "ACCEPTED", AcceptShards: 2}, sandbox.Log(t))
	require.NoError(t, err)
	defer streams.Close()
	require.NoError(t, streams.Ensure(t.Context()))
	nc, err := nats.Connect(broker.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return h.At(t, url, broker.URL()).Connect(url), nc
}
