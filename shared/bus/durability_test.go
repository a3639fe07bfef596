package bus

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// startMonitored starts a server with monitoring, and returns the URLs of the server and of its monitoring.
func startMonitored(t *testing.T, syncs bool) (url, monitor string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: server.RANDOM_PORT,
		JetStream: true, StoreDir: filepath.Join(t.TempDir(), "nats"), JetStreamMaxStore: 1 << 40, SyncAlways: syncs,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(bustest.Soon))
	return s.ClientURL(), "http://" + s.MonitorAddr().String()
}

// fakeMonitor serves a page like a monitoring page.
func fakeMonitor(t *testing.T, status int, page string) string {
	t.Helper()
	f := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(f.Close)
	return f.URL
}

func durabilityOf(t *testing.T, b *Bus, monitors string) Durability {
	t.Helper()
	level, err := b.Durability(bustest.Within(t, bustest.Soon), monitors)
	require.NoError(t, err)
	return level
}

func TestDurabilityLevels(t *testing.T) {
	t.Parallel()
	covers := map[string][]string{
		"process":         {"process"},
		"host":            {"process", "host"},
		"replicated":      {"process", "replicated"},
		"replicated-host": {"process", "host", "replicated", "replicated-host"},
	}
	for name, covered := range covers {
		var d Durability
		require.NoError(t, d.Decode(name))
		require.Equal(t, name, d.String())
		var got []string
		for _, other := range []string{"process", "host", "replicated", "replicated-host"} {
			var least Durability
			require.NoError(t, least.Decode(other))
			if d.Covers(least) {
				got = append(got, other)
			}
		}
		require.Equal(t, covered, got, name)
		require.False(t, Durability(0).Covers(d))
	}
	require.Equal(t, "nothing", Durability(0).String())
	var unset Durability
	for _, bad := range []string{"nothing", "Host", "host,replicated"} {
		require.Error(t, unset.Decode(bad), bad)
	}
	require.NoError(t, unset.Decode(""))
	require.Zero(t, unset)
}

func TestDurableHostNeedsSyncAlways(t *testing.T) {
	t.Parallel()
	for syncs, want := range map[bool]Durability{true: DurableHost, false: DurableProcess} {
		url, monitor := startMonitored(t, syncs)
		b := newBusWithStreams(t, Config{URL: url})
		require.Equal(t, want, durabilityOf(t, b, monitor+"/"))
		require.Equal(t, DurableProcess, durabilityOf(t, b, ""), "no monitor")
	}
}

func TestDurabilityIgnoresOtherServers(t *testing.T) {
	t.Parallel()
	url, own := startMonitored(t, false)
	_, other := startMonitored(t, true)
	b := newBusWithStreams(t, Config{URL: url})
	require.Equal(t, DurableProcess, durabilityOf(t, b, own+", "+other))
}

func TestDurabilityIsReadFromPageOfMonitor(t *testing.T) {
	t.Parallel()
	url, _ := startMonitored(t, true)
	b := newBusWithStreams(t, Config{URL: url})
	conn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	serverName := conn.nats().ConnectedServerName()
	for name, c := range map[string]struct {
		status int
		page   string
		valid  bool // a monitor can return this page, so Durability returns no error
		want   Durability
	}{
		"syncs":        {200, `{"server_name":"NAME","version":"2.15.0","jetstream":{"config":{"sync_always":true}}}`, true, DurableHost},
		"older":        {200, `{"server_name":"NAME","version":"2.14.9","jetstream":{"config":{"sync_always":true}}}`, true, DurableProcess},
		"no JetStream": {200, `{"server_name":"NAME","version":"2.15.0","jetstream":{}}`, true, DurableProcess},
		"no page":      {404, ``, false, DurableProcess},
		"no JSON":      {200, `<html>`, false, DurableProcess},
	} {
		level, err := b.Durability(bustest.Within(t, bustest.Soon), fakeMonitor(t, c.status, strings.ReplaceAll(c.page, "NAME", serverName)))
		require.Equal(t, c.want, level, name)
		if c.valid {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, ErrUnavailable, name)
		}
	}
}

func TestDurabilityOfMemoryOrAsyncStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   Durability
	}{
		"in memory":    {func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, 0},
		"async writes": {func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }, DurableProcess},
	} {
		url, monitor := startMonitored(t, true)
		b := newBus(t, url)
		config := streamConfigs(&b.cfg, true)[1]
		require.Equal(t, StreamAccepted, config.Name)
		c.change(&config)
		conn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
		require.NoError(t, err)
		_, err = conn.js.CreateStream(t.Context(), config)
		require.NoError(t, err, name)
		require.Equal(t, c.want, durabilityOf(t, b, monitor), name)
	}
}

func TestDurabilityWithoutMonitorOrNATS(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	level, err := b.Durability(bustest.Within(t, bustest.Soon), "http://127.0.0.1:1")
	require.ErrorIs(t, err, ErrUnavailable, "the monitor does not reply")
	require.Equal(t, DurableProcess, level)
	broker.Stop()
	level, err = b.Durability(bustest.Within(t, bustest.Soon), "")
	require.ErrorIs(t, err, ErrUnavailable)
	require.Zero(t, level)
}

func TestReplicatedHostNeedsSyncAlwaysOnAllReplicas(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	c, b := newCluster(t)
	require.Equal(t, DurableReplicated, durabilityOf(t, b, ""))
	var monitors []string
	for _, s := range c {
		monitors = append(monitors, fakeMonitor(t, 200, `{"server_name":"`+s.Name+`","version":"2.15.2","jetstream":{"config":{"sync_always":true}}}`))
	}
	require.Equal(t, DurableReplicated, durabilityOf(t, b, strings.Join(monitors[:2], ",")), "the third server has no monitor")
	require.Equal(t, DurableReplicatedHost, durabilityOf(t, b, strings.Join(monitors, ",")))
}
