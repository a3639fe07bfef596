package sandbox

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func TestNATSKeepsItsStreamsThroughARestartOnTheSamePort(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nats")
	first := NATSIn(t, NATSOptions{Dir: dir})
	publish(t, first.URL(), func(js nats.JetStreamContext) {
		_, err := js.AddStream(&nats.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}})
		require.NoError(t, err)
		_, err = js.Publish("kept", []byte("still here"))
		require.NoError(t, err)
	})
	require.NoError(t, first.Stop())

	second := NATSIn(t, NATSOptions{Dir: dir, Port: first.Port(), SyncAlways: true})
	require.Equal(t, first.URL(), second.URL())
	publish(t, second.URL(), func(js nats.JetStreamContext) {
		m, err := js.GetMsg("KEPT", 1)
		require.NoError(t, err)
		require.Equal(t, "still here", string(m.Data))
	})
}

func TestATemporaryNATSLeavesNothing(t *testing.T) {
	t.Parallel()
	n, err := StartNATS(t.Context(), NATSOptions{})
	require.NoError(t, err)
	require.DirExists(t, n.dir)
	require.NoError(t, n.Stop())
	require.NoDirExists(t, n.dir)
}

func TestNATSOnATakenPortIsAnError(t *testing.T) {
	t.Parallel()
	taken := NewNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := StartNATS(ctx, NATSOptions{Port: taken.Port()})
	require.ErrorContains(t, err, "is the port taken?")
}

func publish(t *testing.T, url string, use func(nats.JetStreamContext)) {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	defer nc.Close()
	js, err := nc.JetStream()
	require.NoError(t, err)
	use(js)
}

func TestANATSServerThatWasKilledHasWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	s := NewNATSServer(t)
	publish(t, s.URL(), func(js nats.JetStreamContext) {
		_, err := js.AddStream(&nats.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}})
		require.NoError(t, err)
		_, err = js.Publish("kept", []byte("still here"))
		require.NoError(t, err)
	})
	s.Kill()
	_, err := nats.Connect(s.URL())
	require.ErrorIs(t, err, nats.ErrNoServers)
	s.Start()
	publish(t, s.URL(), func(js nats.JetStreamContext) {
		m, err := js.GetMsg("KEPT", 1)
		require.NoError(t, err)
		require.Equal(t, "still here", string(m.Data))
	})
}

func TestAClusterOfNATSServersOutlivesOneOfThem(t *testing.T) {
	t.Parallel()
	c := NewNATSCluster(t, 3)
	publish(t, c.URL(), func(js nats.JetStreamContext) {
		var made *nats.StreamInfo
		require.Eventually(t, func() (ok bool) {
			var err error
			made, err = js.AddStream(&nats.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}, Replicas: 3})
			return err == nil
		}, 30*time.Second, 50*time.Millisecond, "the cluster is formed")
		_, err := js.Publish("kept", []byte("still here"))
		require.NoError(t, err)
		for _, s := range c {
			if s.Name == made.Cluster.Leader {
				s.Kill()
			}
		}
		require.Eventually(t, func() bool {
			m, err := js.GetMsg("KEPT", 1)
			return err == nil && string(m.Data) == "still here"
		}, 30*time.Second, 50*time.Millisecond)
	})
}
