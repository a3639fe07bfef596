package trigger

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// newCluster returns three servers, and a Bus that has created its streams, each with the given number of replicas.
func newCluster(t *testing.T, replicas int) (sandbox.NATSCluster, *bus.Bus) {
	t.Helper()
	c := sandbox.NewNATSCluster(t, 3)
	b := openBus(t, bus.Config{URL: c.URL(), Replicas: replicas})
	require.Eventually(t, func() bool { return b.Ensure(bustest.Within(t, bustest.Soon)) == nil }, 3*bustest.Soon, 100*time.Millisecond, "the cluster is formed")
	return c, b
}

// waitLeader waits until a stream has a leader, and returns the name of its server.
func waitLeader(t *testing.T, b *bus.Bus, stream string) string {
	t.Helper()
	conn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	leader := ""
	bustest.Eventually(t, func() bool {
		s, err := conn.JetStream().Stream(bustest.Within(t, bustest.Soon), stream)
		if err == nil {
			leader = s.CachedInfo().Cluster.Leader
		}
		return leader != ""
	}, "the stream has a leader")
	return leader
}

func kill(c sandbox.NATSCluster, name string) {
	c[slices.IndexFunc(c, func(s *sandbox.NATSServer) bool { return s.Name == name })].Kill()
}

func TestClusterKeepsOrderWhenLeaderStops(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	c, b := newCluster(t, 3)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, n int) {
		time.Sleep(5 * time.Millisecond)
		if n%5 == 1 {
			w.WriteHeader(503)
			return
		}
		l.record(t, c)
	})
	route := batchRoute()
	other := openBus(t, bus.Config{URL: c.URL(), Replicas: 3})
	runTrigger(t, b, testConfig(f), route)
	runTrigger(t, other, testConfig(f), route)
	const events = 400
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 1; i <= events; i++ {
			a := acceptance(t, strconv.Itoa(i), "x")
			for began := time.Now(); ; {
				if _, err := b.Accept(bustest.Within(t, time.Second), a); err == nil {
					break
				} else if time.Since(began) > 3*bustest.Soon {
					t.Error(err)
					return
				}
			}
		}
	})
	bustest.Eventually(t, func() bool { return len(l.recorded()) > 50 }, "the function has received some events")
	kill(c, waitLeader(t, b, bus.StreamAccepted))
	publishing.Wait()
	require.Eventually(t, func() bool { return len(l.recorded()) == events }, 3*bustest.Soon, bustest.Poll, "the function has received all events")
	require.Equal(t, numbers(1, events), l.recorded())
}

func TestStreamWithoutLeaderStopsOnlyItsRoute(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	c, b := newCluster(t, 1)
	// EVENTS and WAKE must be on different servers, so that only EVENTS is lost. NATS chooses the servers at random.
	for waitLeader(t, b, bus.StreamEvents) == waitLeader(t, b, bus.StreamWake) {
		conn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
		require.NoError(t, err)
		require.NoError(t, conn.JetStream().DeleteStream(bustest.Within(t, bustest.Soon), bus.StreamEvents))
		require.Eventually(t, func() bool { return b.Ensure(bustest.Within(t, bustest.Soon)) == nil }, 3*bustest.Soon, 100*time.Millisecond)
	}
	f := newFunction(t, respondWith(204))
	trigger := runTrigger(t, b, testConfig(f), testRoute(), wakeRoute("sweep", time.Second))
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run")
	kill(c, waitLeader(t, b, bus.StreamEvents))
	bustest.Eventually(t, func() bool { return trigger.Routes()[0].Stopped != nil && trigger.Routes()[1].Pulling }, "only the route of the lost stream stops")
	before := len(f.allCalls())
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= before+2 }, "the other route still ticks")
	require.ErrorContains(t, trigger.Ready(), "these routes do not run: "+testRoute().Durable+" (")
}
