package bus

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// newCluster returns three servers, and a Bus that has created its streams with three replicas.
func newCluster(t *testing.T) (sandbox.NATSCluster, *Bus) {
	t.Helper()
	c := sandbox.NewNATSCluster(t, 3)
	b := newBus(t, c.URL())
	b.cfg.Replicas = 3
	require.Eventually(t, func() bool { return b.Ensure(bustest.Within(t, bustest.Soon)) == nil }, 3*bustest.Soon, 100*time.Millisecond, "the cluster is formed")
	return c, b
}

func TestClusterAcceptsOnce(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	_, b := newCluster(t)
	raceToAccept(t, b, 100) // stores 100 messages: r0 to r99
	for i := 1; i <= 100; i++ {
		accepted := accept(t, b, strconv.Itoa(i), "x")
		found := lookUp(t, b, strconv.Itoa(i))
		require.NotNil(t, found, "no replica may report it as missing")
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
	sandbox.Slow(t)
	t.Parallel()
	c, b := newCluster(t)
	nc, err := nats.Connect(b.cfg.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	var stopped, running string // streams with one replica, on different servers
	var toKill *sandbox.NATSServer
	for i := 0; toKill == nil || running == ""; i++ {
		name := "ONE" + strconv.Itoa(i)
		s, err := js.CreateStream(bustest.Within(t, bustest.Soon), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Replicas: 1})
		require.NoError(t, err)
		leader := s.CachedInfo().Cluster.Leader
		server := c[slices.IndexFunc(c, func(s *sandbox.NATSServer) bool { return s.Name == leader })]
		if toKill == nil && leader != nc.ConnectedServerName() {
			stopped, toKill = name, server
		} else if server != toKill {
			running = name
		}
	}
	toKill.Kill()
	id := 0
	require.Eventually(t, func() bool {
		id++
		errs := b.Publish(bustest.Within(t, 2*time.Second), []Message{
			{Subject: stopped + ".a", Event: bustest.Event(strconv.Itoa(id))}, {Subject: stopped + ".b", Event: bustest.Event(strconv.Itoa(id))},
			{Subject: running + ".a", Event: bustest.Event(strconv.Itoa(id))},
		})
		return errors.Is(errs[0], ErrStreamUnavailable) && errors.Is(errs[1], ErrStreamUnavailable) && errs[2] == nil
	}, 3*bustest.Soon, bustest.Poll, "only the stream of the killed server is unavailable")
}
