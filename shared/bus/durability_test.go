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
)

// monitored is a server whose monitoring page is open; it gives both its URLs.
func monitored(t *testing.T, syncs bool) (url, monitor string) {
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

// monitorSaying is a monitoring page of somebody else's.
func monitorSaying(t *testing.T, status int, page string) string {
	t.Helper()
	f := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(f.Close)
	return f.URL
}

func TestDurabilityCovers(t *testing.T) {
	t.Parallel()
	covers := map[string][]string{
		"process":         {"process"},
		"host":            {"process", "host"},
		"replicated":      {"process", "replicated"},
		"replicated-host": {"process", "host", "replicated", "replicated-host"},
	}
	for word, covered := range covers {
		d, err := parseDurability(word)
		require.NoError(t, err)
		require.Equal(t, word, d.String())
		var all []string
		for _, other := range []string{"process", "host", "replicated", "replicated-host"} {
			var least Durability
			require.NoError(t, least.Decode(other))
			if d.Covers(least) {
				all = append(all, other)
			}
		}
		require.Equal(t, covered, all, word)
		require.False(t, Durability(0).Covers(d))
	}
	require.Equal(t, "nothing", Durability(0).String())
	for _, bad := range []string{"", "nothing", "Host", "host,replicated"} {
		_, err := parseDurability(bad)
		require.Error(t, err, bad)
	}
	unset := Durability(0)
	require.NoError(t, unset.Decode(""))
	require.Zero(t, unset)
}

func TestDurableHostNeedsSyncAlways(t *testing.T) {
	t.Parallel()
	for syncs, want := range map[bool]Durability{true: DurableHost, false: DurableProcess} {
		url, monitor := monitored(t, syncs)
		b := newBus(t, url)
		require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
		gives, err := b.Durability(bustest.Within(t, bustest.Soon), monitor+"/")
		require.NoError(t, err)
		require.Equal(t, want, gives)
		gives, err = b.Durability(bustest.Within(t, bustest.Soon), "")
		require.NoError(t, err)
		require.Equal(t, DurableProcess, gives, "no monitor")
	}
}

func TestDurabilityIgnoresOtherServers(t *testing.T) {
	t.Parallel()
	url, own := monitored(t, false)
	_, other := monitored(t, true)
	b := newBus(t, url)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	gives, err := b.Durability(bustest.Within(t, bustest.Soon), own+", "+other)
	require.NoError(t, err)
	require.Equal(t, DurableProcess, gives)

	url, _ = monitored(t, true)
	b = newBus(t, url)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	l, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	name := l.js.Conn().ConnectedServerName()
	for what, c := range map[string]struct {
		status int
		page   string
		known  bool
		want   Durability
	}{
		"the same":   {200, `{"server_name":"NAME","version":"2.15.0","jetstream":{"config":{"sync_always":true}}}`, true, DurableHost},
		"older":      {200, `{"server_name":"NAME","version":"2.14.9","jetstream":{"config":{"sync_always":true}}}`, true, DurableProcess},
		"no streams": {200, `{"server_name":"NAME","version":"2.15.0","jetstream":{}}`, true, DurableProcess},
		"no page":    {404, ``, false, DurableProcess},
		"no JSON":    {200, `<html>`, false, DurableProcess},
	} {
		gives, err := b.Durability(bustest.Within(t, bustest.Soon), monitorSaying(t, c.status, strings.ReplaceAll(c.page, "NAME", name)))
		require.Equal(t, c.want, gives, what)
		if c.known {
			require.NoError(t, err, what)
		} else {
			require.ErrorIs(t, err, ErrUnavailable, what)
		}
	}
}

func TestDurabilityOfMemoryStream(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   Durability
	}{
		"in memory":       {func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, 0},
		"written at ease": {func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }, DurableProcess},
	} {
		url, monitor := monitored(t, true)
		b := newBus(t, url)
		config := streamConfigs(&b.cfg, true)[1]
		require.Equal(t, StreamAccepted, config.Name)
		c.change(&config)
		l, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
		require.NoError(t, err)
		_, err = l.js.CreateStream(t.Context(), config)
		require.NoError(t, err, what)
		gives, err := b.Durability(bustest.Within(t, bustest.Soon), monitor)
		require.NoError(t, err)
		require.Equal(t, c.want, gives, what)
	}
}

func TestDurabilityWithoutNATS(t *testing.T) {
	t.Parallel()
	var none *Bus
	gives, err := none.Durability(t.Context(), "")
	require.ErrorIs(t, err, ErrUnavailable)
	require.Zero(t, gives)

	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	gives, err = b.Durability(bustest.Within(t, bustest.Soon), "http://127.0.0.1:1")
	require.ErrorIs(t, err, ErrUnavailable, "the monitor")
	require.Equal(t, DurableProcess, gives)
	broker.Stop()
	gives, err = b.Durability(bustest.Within(t, bustest.Soon), "")
	require.ErrorIs(t, err, ErrUnavailable)
	require.Zero(t, gives)
}

func TestReplicatedHostNeedsAllReplicasSynced(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t)
	gives, err := b.Durability(bustest.Within(t, bustest.Soon), "")
	require.NoError(t, err)
	require.Equal(t, DurableReplicated, gives)
	var monitors []string
	for _, s := range c {
		monitors = append(monitors, monitorSaying(t, 200, `{"server_name":"`+s.Name+`","version":"2.15.2","jetstream":{"config":{"sync_always":true}}}`))
	}
	gives, err = b.Durability(bustest.Within(t, bustest.Soon), strings.Join(monitors[:2], ","))
	require.NoError(t, err)
	require.Equal(t, DurableReplicated, gives, "no monitor of the third")
	gives, err = b.Durability(bustest.Within(t, bustest.Soon), strings.Join(monitors, ","))
	require.NoError(t, err)
	require.Equal(t, DurableReplicatedHost, gives)
}
