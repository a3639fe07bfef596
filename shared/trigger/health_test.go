package trigger

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// hangingTransport never responds, not even when the request is cancelled.
type hangingTransport struct{ end chan struct{} }

func (h hangingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	<-h.end
	return nil, http.ErrHandlerTimeout
}

func TestAliveFailsPastDeadline(t *testing.T) {
	t.Parallel()
	for name, route := range map[string]Route{"single events": testRoute(), "batches": batchRoute()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &sandbox.LogBuffer{}
			b := newBus(t, bustest.NewBroker(t).URL())
			route.InFlight, route.Timeout = 1, time.Second
			trigger := newTrigger(t, log, b, testConfig(newFunction(t, respondWith(204))), route)
			hanging := hangingTransport{make(chan struct{})}
			trigger.client.Transport = hanging
			run(t, trigger)
			t.Cleanup(func() { close(hanging.end) }) // runs before the cleanup of run, which waits for Run
			bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run")
			if route.Batch > 0 {
				acceptAll(t, b, 1, 1)
			} else {
				publishAll(t, b, eventMessage("1"))
			}
			bustest.Eventually(t, func() bool { return trigger.Routes()[0].Posting == 1 }, "the POST hangs")
			require.Empty(t, trigger.stuck(time.Now().Add(trigger.deliveryMax)), "before the deadline")
			require.NoError(t, trigger.Alive())
			late := time.Now().Add(trigger.deliveryMax + stuckAfter + time.Second)
			bustest.Eventually(t, func() bool { return len(trigger.stuck(late)) == 1 }, "past the deadline")
			require.Equal(t, []string{route.Durable}, trigger.stuck(late))

			passed := time.Now().Add(-stuckAfter - time.Second)
			trigger.routes[0].deadline.Store(&passed)
			require.EqualError(t, trigger.Alive(), "stuck: "+route.Durable)
			require.Error(t, trigger.Alive())
			require.Equal(t, 1, strings.Count(log.String(), "stuck: "), "it is logged once")
		})
	}
}

func TestAliveWhileIdleOrWithoutNATS(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	trigger := runTrigger(t, newBus(t, broker.URL()), testConfig(newFunction(t, respondWith(204))), testRoute(), batchRoute())
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run")
	require.True(t, trigger.Connected())
	require.Empty(t, trigger.stuck(time.Now().Add(pullTimeout)), "an idle route sets a new deadline with each pull")
	require.NoError(t, trigger.Alive())

	broker.Stop()
	bustest.Eventually(t, func() bool { return !trigger.Connected() }, "disconnected")
	require.EqualError(t, trigger.Ready(), "not connected to NATS")
	bustest.Eventually(t, func() bool { return len(trigger.stuck(time.Now().Add(24*time.Hour))) == 0 }, "waiting for NATS has no deadline")

	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run again")
	trigger.stop()
	require.ErrorContains(t, trigger.Ready(), "these routes do not run: d (")
	require.Empty(t, trigger.stuck(time.Now().Add(24*time.Hour)), "a stopped trigger has no deadline")
}

func TestAliveDuringLongRetryAfter(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, func(w http.ResponseWriter, _ call, _ int) {
		w.Header().Set("Retry-After", "1800")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	acceptAll(t, b, 1, 1)
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Retried == 1 }, "a retry is scheduled")
	bustest.Eventually(t, func() bool { return len(trigger.stuck(time.Now().Add(29*time.Minute))) == 0 }, "a pause until Retry-After is not a hang")
	require.Len(t, trigger.stuck(time.Now().Add(32*time.Minute)), 1)
}

func TestOnDeliveryAndBacklog(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		switch c.id {
		case "poison":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case "busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	cfg, route := testConfig(f), testRoute()
	cfg.MinBackoff, cfg.MaxBackoff = 100*time.Millisecond, 100*time.Millisecond
	route.InFlight = 1 // so the last event waits behind the busy one
	var mu sync.Mutex
	statuses := map[int]int{}
	cfg.OnDelivery = func(durable, function string, status int, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if durable == "d" && function == "f" && took > 0 {
			statuses[status]++
		}
	}
	publishAll(t, b, eventMessage("1"), eventMessage("poison"), eventMessage("busy"), eventMessage("4"))
	trigger := runTrigger(t, b, cfg, route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Retried >= 2 }, "the busy event is redelivered")
	backlog, err := trigger.Backlog(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.Equal(t, Backlog{Routes: map[string]RouteBacklog{"d": {Waiting: 1, Unsettled: 1, Redelivered: 1}}, DeadLetters: 1}, backlog)
	mu.Lock()
	require.Equal(t, 1, statuses[200])
	require.Equal(t, 1, statuses[422])
	require.GreaterOrEqual(t, statuses[503], 2)
	mu.Unlock()

	f.CloseClientConnections()
	f.Listener.Close()
	bustest.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return statuses[0] > 0 }, "no response")
	broker.Stop()
	bustest.Eventually(t, func() bool { return !trigger.Connected() }, "disconnected")
	_, err = trigger.Backlog(bustest.Within(t, bustest.Soon))
	require.ErrorIs(t, err, bus.ErrNotConnected)
}
