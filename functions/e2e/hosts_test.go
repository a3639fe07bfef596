package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
)

// A host is one of the servers that all functions may run on.
type host struct {
	name string
	// start returns its URL. nats is empty for none; with it, messages may be
	// accepted before they are saved.
	start func(t *testing.T, database, nats string) string
}

var (
	ownServer       = host{"our server", startOwnServer}
	frameworkServer = host{"the functions framework", startFramework}
)

// onBothServers runs a test once for each server.
func onBothServers(t *testing.T, test func(t *testing.T, h host)) {
	for _, h := range []host{ownServer, frameworkServer} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// startOwnServer serves in this process, so that the race detector sees it.
func startOwnServer(t *testing.T, database, nats string) string {
	cfg := fn.Config{
		DatabaseURL: database, Username: "admin", Password: "secret", Metrics: "open", EncryptionKeys: sandbox.EncryptionKey, Roles: fn.Roles(sandbox.Roles),
		TaskEvents: store.FinalEvents, Bus: bus.Config{URL: natsURL(t, nats, bus.UserAll), Replicas: 1},
		TwoPhase: fn.TwoPhase{Enabled: nats != "", FailOpen: true, Stream: "ACCEPTED", Shards: 2, BatchSize: 100, DedupeWindow: time.Hour},
	}
	env, err := fn.NewEnv(cfg, sandbox.Log(t))
	require.NoError(t, err)
	handler, err := fn.Handler(env, functions.Catalogue()...)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fn.Serve(ctx, env, l, handler) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		env.Close()
	})
	return "http://" + l.Addr().String()
}

// startFramework starts functions/framework.
func startFramework(t *testing.T, database, nats string) string {
	_, url := serveByFramework(t, settings(database, "NATS_URL="+nats, fmt.Sprintf("TWO_PHASE_ENABLED=%t", nats != ""), "TWO_PHASE_SHARDS=2")...)
	return url
}

func serveByFramework(t *testing.T, settings ...string) (*sandbox.Process, string) {
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	p := startProcess(t, sandbox.Build(t, "github.com/sendonce/sendonce/functions/framework", false), append(settings, fmt.Sprintf("PORT=%d", port)))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, url+"/healthz"), p.Output())
	return p, url
}

// at is the host on a database, as the built-in admin.
func (h host) at(t *testing.T, database, nats string) *server {
	return &server{t: t, url: h.start(t, database, nats), user: "admin", password: "secret", host: h}
}

// serve is the host on a fresh database.
func (h host) serve(t *testing.T) *server {
	t.Helper()
	url := sandbox.NewDatabase(t)
	return h.at(t, url, "").connect(url)
}

// serveWithNATS is serve with a broker, whose streams are there, and a
// connection to it.
func (h host) serveWithNATS(t *testing.T) (*server, *nats.Conn) {
	t.Helper()
	broker, url := newNATS(t), sandbox.NewDatabase(t)
	streams, err := bus.Open(bus.Config{URL: broker.URL(), Replicas: 1, AcceptStream: "ACCEPTED", AcceptShards: 2}, sandbox.Log(t))
	require.NoError(t, err)
	defer streams.Close()
	require.NoError(t, streams.Ensure(t.Context()))
	nc, err := nats.Connect(broker.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return h.at(t, url, broker.URL()).connect(url), nc
}

// What docs/platform.md says of the two servers.
func TestTheServersDiffer(t *testing.T) {
	t.Parallel()
	const none = "postgres://nobody@127.0.0.1:1/none"
	differs := map[string]struct{ unclean, longHeader int }{ownServer.name: {404, 431}, frameworkServer.name: {307, 200}}
	onBothServers(t, func(t *testing.T, h host) {
		s, want := h.at(t, none, ""), differs[h.name]
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		status := func(path, header string) int {
			req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+path, nil)
			require.NoError(t, err)
			req.Header.Set("X-Long", header)
			res, err := client.Do(req)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			return res.StatusCode
		}
		require.Equal(t, want.unclean, status("//healthz", ""))
		require.Equal(t, want.longHeader, status("/healthz", strings.Repeat("x", 64<<10)))
	})
}

func TestAPollEndsBeforeTheFrameworksDeadline(t *testing.T) {
	t.Parallel()
	_, url := serveByFramework(t, settings(sandbox.NewDatabase(t), "CLOUD_RUN_TIMEOUT_SECONDS=3")...)
	s := &server{t: t, user: "admin", password: "secret", url: url}
	began := time.Now()
	poll := s.get("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	require.Equal(t, 200, poll.status, poll.text)
	require.Empty(t, poll.list())
	require.Less(t, time.Since(began), 10*time.Second)
}

func TestTheFrameworkTakesTheSettingsOfTheBinary(t *testing.T) {
	t.Parallel()
	_, url := serveByFramework(t, settings("postgres://nobody@127.0.0.1:1/none", "FUNCTION_TARGET=claim", "SENDONCE_SAFETY_TICK=1m")...)
	s := &server{t: t, url: url, user: "admin", password: "secret"}
	require.Equal(t, 503, s.get("/api/v1/sms/tasks/pending?app_id=a").status)
	require.Equal(t, 404, s.post("/api/v1/sms/send", "{}").status)
}

func TestTheFrameworkHoldsToTheBoundOfCallsAndDrains(t *testing.T) {
	t.Parallel()
	database := sandbox.NewDatabase(t)
	p, url := serveByFramework(t, settings(database, "SENDONCE_MAX_WAITING=1")...)
	s := (&server{t: t, url: url, user: "admin", password: "secret"}).connect(database)
	poll := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	refused := s.get("/api/v1/sms/tasks/pending?app_id=b&wait=30")
	require.Equal(t, 429, refused.status, refused.text)
	require.Equal(t, 200, s.get("/healthz").status)
	code, err := p.Terminate(20 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code, p.Output())
	answer := <-poll
	require.Equal(t, 200, answer.status)
	require.Empty(t, answer.list())
	require.Contains(t, p.Output(), `"msg":"drained"`)
}
