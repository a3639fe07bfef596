package bus

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// cluster is three servers of the test's own.
type cluster struct {
	t       *testing.T
	servers []*server.Server
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t}
	ports, routes := make([]int, 3), make([]string, 3)
	for i := range ports {
		var err error
		ports[i], err = sandbox.FreePort()
		require.NoError(t, err)
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", ports[i])
	}
	dir := t.TempDir()
	for i, port := range ports {
		s, err := server.NewServer(&server.Options{
			ServerName: "n" + strconv.Itoa(i), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			Cluster:   server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port},
			Routes:    server.RoutesFromStr(strings.Join(routes, ",")),
			JetStream: true, StoreDir: filepath.Join(dir, strconv.Itoa(i)), JetStreamMaxStore: 1 << 40,
			NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
		})
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		c.servers = append(c.servers, s)
	}
	return c
}

// bus gives a Bus that knows all servers, with so many copies of the streams made.
func (c *cluster) bus(copies int) *Bus {
	c.t.Helper()
	var urls []string
	for _, s := range c.servers {
		require.True(c.t, s.ReadyForConnections(soon))
		urls = append(urls, s.ClientURL())
	}
	b := newBus(c.t, strings.Join(urls, ","))
	b.cfg.Replicas = copies
	require.Eventually(c.t, func() bool { return b.Ensure(within(c.t, soon)) == nil }, 3*soon, 100*time.Millisecond, "the cluster is formed")
	return b
}

func TestClusterAcceptsOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.bus(3)
	raceToAccept(t, b, 100)
	for i := 1; i <= 100; i++ {
		a := acceptance(t, strconv.Itoa(i), "x")
		accepted, err := b.Accept(within(t, soon), a)
		require.NoError(t, err)
		found, err := b.LookUp(within(t, soon), strconv.Itoa(i))
		require.NoError(t, err)
		require.NotNil(t, found, "no replica may say that it was never accepted")
		require.Equal(t, accepted.Seq, found.Seq)
	}
	state, err := b.AcceptState(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 200, state.Messages)
	require.NoError(t, b.Forget(t.Context(), []AcceptedEntry{{"1", 101}, {"2", 102}, {"3", 103}}))
	state, err = b.AcceptState(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 197, state.Messages)
}

func TestPublishToStreamWithoutLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.bus(3)
	nc, err := nats.Connect(b.cfg.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	var gone, there string // streams of one server each
	var victim *server.Server
	for i := 0; victim == nil || there == ""; i++ {
		name := "ONE" + strconv.Itoa(i)
		s, err := js.CreateStream(within(t, soon), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Replicas: 1})
		require.NoError(t, err)
		leader := s.CachedInfo().Cluster.Leader
		at := c.servers[slices.IndexFunc(c.servers, func(s *server.Server) bool { return s.Name() == leader })]
		if victim == nil && !at.JetStreamIsLeader() && leader != nc.ConnectedServerName() {
			gone, victim = name, at
		} else if at != victim {
			there = name
		}
	}
	victim.Shutdown()
	id := 0
	require.Eventually(t, func() bool {
		id++
		errs := b.Publish(within(t, 2*time.Second), []Message{
			{Subject: gone + ".a", Event: newEvent(strconv.Itoa(id))}, {Subject: gone + ".b", Event: newEvent(strconv.Itoa(id))},
			{Subject: there + ".a", Event: newEvent(strconv.Itoa(id))},
		})
		return errors.Is(errs[0], ErrStreamUnavailable) && errors.Is(errs[1], ErrStreamUnavailable) && errs[2] == nil
	}, 3*soon, every, "one stream is away, and the other goes on")
}
