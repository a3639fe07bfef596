package trigger

import (
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestTriggerPostsEventUnchanged(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, f := newBus(t, broker.URL()), newFunction(t, respondWith(204))
	trigger := runTrigger(t, b, testConfig(f), testRoute())
	m := eventMessage("1")
	m.Event.SetExtension("sequence", "7")
	require.NoError(t, m.Event.SetData(cloudevents.ApplicationJSON, map[string]string{"task_id": "x"}))
	bustest.Eventually(t, func() bool { return b.Publish(bustest.Within(t, bustest.Soon), []bus.Message{m})[0] == nil }, "published")

	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.Equal(t, RouteCounts{Deliveries: 1, Acked: 1}, trigger.Counts()["d"])
	require.Len(t, f.allCalls(), 1)
	c := f.allCalls()[0]
	require.Equal(t, "POST /events/f", c.route)
	require.Equal(t, "trigger token", c.user+" "+c.password)
	require.JSONEq(t, `{"task_id":"x"}`, c.body)
	for name, want := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/test", "Ce-Type": "sendonce.task.succeeded.v1",
		"Ce-Sequence": "7", "Ce-Deliveryattempt": "1", "Content-Type": "application/json", "Nats-Msg-Id": "",
	} {
		require.Equal(t, want, c.header.Get(name), name)
	}
	require.True(t, isSettled(t, broker, testRoute()))
}

func TestWakeUpIsPostedAsTick(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, f := newBus(t, broker.URL()), newFunction(t, respondWith(204))
	runTrigger(t, b, testConfig(f), wakeRoute("sweep", time.Second))
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= 2 }, "a safety tick is posted every second")
	first, second := f.allCalls()[0], f.allCalls()[1]
	require.Equal(t, "POST /events/sweep", first.route)
	require.Empty(t, first.body)
	require.NotEqual(t, first.id, second.id)
	require.Regexp(t, `^WAKE-\d+-sweep$`, first.id)
	require.Equal(t, "sendonce.tick.sweep.v1", first.header.Get("Ce-Type"))
	require.Equal(t, "/sendonce/trigger", first.header.Get("Ce-Source"))
	_, err := time.Parse(time.RFC3339Nano, first.header.Get("Ce-Time"))
	require.NoError(t, err)

	before := len(f.allCalls())
	b.Wake(bus.WakeSweep, 5)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) > before }, "a wake-up is delivered")
}

func TestNewerWakeUpReplacesWaitingOne(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	gate := make(chan struct{})
	f := newFunction(t, func(w http.ResponseWriter, _ call, n int) {
		switch n {
		case 1:
			w.WriteHeader(503)
		case 2:
			<-gate
		}
	})
	cfg := testConfig(f)
	cfg.MinBackoff, cfg.MaxBackoff = time.Hour, time.Hour
	trigger := runTrigger(t, b, cfg, wakeRoute("relay", 0))
	b.Wake(bus.WakeRelay, 1)
	bustest.Eventually(t, func() bool { return trigger.Counts()["relay"].Retried == 1 }, "the retry waits for an hour")
	b.Wake(bus.WakeRelay, 1)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 2 }, "the next wake-up is delivered at once")
	b.Wake(bus.WakeRelay, 1)
	require.Len(t, f.allCalls(), 2, "one delivery at a time")
	close(gate)
	bustest.Eventually(t, func() bool { return trigger.Counts()["relay"].Acked == 2 }, "the wake-up during the delivery is delivered too")
	require.Len(t, f.allCalls(), 3)
}

func TestTriggerWakesFunctionsOnConnect(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, f := newBus(t, broker.URL()), newFunction(t, respondWith(204))
	trigger := runTrigger(t, b, testConfig(f), wakeRoute("sweep", time.Hour), wakeRoute("relay", 0))
	acked := func(n uint64) func() bool {
		return func() bool { return trigger.Counts()["sweep"].Acked == n }
	}
	bustest.Eventually(t, acked(1), "the function is woken on the first connect")

	broker.Stop()
	require.Len(t, f.allCalls(), 1, "no calls while disconnected")
	broker.Start(broker.Dir)
	bustest.Eventually(t, acked(2), "the function is woken on the second connect")
	require.Zero(t, trigger.Counts()["relay"].Deliveries, "a route without a safety tick is not woken")
}

func TestInFlightIsBounded(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Config, *Route){
		"by the route":   func(_ *Config, r *Route) { r.InFlight = 3 },
		"by the trigger": func(c *Config, r *Route) { c.Concurrency, r.InFlight = 3, 20 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker, b := newBroker(t)
			gate := make(chan struct{})
			f := newFunction(t, func(http.ResponseWriter, call, int) { <-gate })
			cfg, route := testConfig(f), testRoute()
			set(&cfg, &route)
			for i := range 20 {
				publishAll(t, b, eventMessage(strconv.Itoa(i)))
			}
			runTrigger(t, b, cfg, route)
			bustest.Eventually(t, func() bool { return len(f.allCalls()) == 3 }, "as many as allowed")
			close(gate)
			bustest.Eventually(t, func() bool { return isSettled(t, broker, route) }, "all settled")
			require.Len(t, f.allCalls(), 20)
			require.Equal(t, 3, f.peak)
		})
	}
}

func TestRunWaitsForDeliveries(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	gate := make(chan struct{})
	f := newFunction(t, func(http.ResponseWriter, call, int) { <-gate })
	route := testRoute()
	route.InFlight = 1
	publishAll(t, b, eventMessage("1"), eventMessage("2"))
	trigger := runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "the POST is in progress")
	trigger.cancel()
	select {
	case <-trigger.ended:
		require.Fail(t, "Run ended during a delivery")
	case <-time.After(50 * time.Millisecond):
	}
	close(gate)
	<-trigger.ended
	require.Equal(t, RouteCounts{Deliveries: 1, Acked: 1}, trigger.Counts()["d"], "the running delivery is settled, and nothing more was pulled")
	c, err := broker.JS().Consumer(t.Context(), route.Stream, route.Durable)
	require.NoError(t, err)
	require.Zero(t, c.CachedInfo().NumAckPending)
	require.EqualValues(t, 1, c.CachedInfo().NumPending)
}

func TestRunWaitsAtMostDrainTimeout(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	gate := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, _ call, n int) {
		if n == 1 {
			<-gate
		}
	})
	defer close(gate)
	cfg := testConfig(f)
	cfg.DrainTimeout = 20 * time.Millisecond
	publishAll(t, b, eventMessage("1"))
	first := runTrigger(t, b, cfg, testRoute())
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "the POST is in progress")
	began := time.Now()
	first.stop()
	require.Less(t, time.Since(began), testRoute().Timeout, "the POST is aborted before its timeout")
	require.EqualValues(t, 1, first.Counts()["d"].Retried)

	second := runTrigger(t, b, cfg, testRoute())
	bustest.Eventually(t, func() bool { return second.Counts()["d"].Acked == 1 }, "acknowledged by another trigger")
}

func TestTwoTriggersPostEachEventOnce(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	f := newFunction(t, respondWith(204))
	one, two := newBus(t, broker.URL()), newBus(t, broker.URL())
	first, second := runTrigger(t, one, testConfig(f), testRoute()), runTrigger(t, two, testConfig(f), testRoute())
	publish := func(from, to int) {
		messages := make([]bus.Message, 0, to-from)
		for i := from; i < to; i++ {
			messages = append(messages, eventMessage(strconv.Itoa(i)))
		}
		bustest.Eventually(t, func() bool {
			for _, err := range one.Publish(bustest.Within(t, bustest.Soon), messages) {
				if err != nil {
					return false
				}
			}
			return true
		}, "published")
	}
	acked := func() uint64 { return first.Counts()["d"].Acked + second.Counts()["d"].Acked }
	publish(0, 300)
	bustest.Eventually(t, func() bool { return acked() == 300 }, "all delivered")
	first.stop()
	publish(300, 400)
	bustest.Eventually(t, func() bool { return acked() == 400 }, "the other trigger delivers")
	for i := range 400 {
		require.Equal(t, 1, f.countOf(strconv.Itoa(i)), i)
	}
}

func TestTriggerSurvivesRestartOfNATS(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	gate := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, _ call, n int) {
		if n > 20 {
			<-gate // these are in progress or waiting when the server stops
		}
	})
	runTrigger(t, b, testConfig(f), testRoute())
	require.NoError(t, b.Ensure(t.Context()))
	const events = 60
	for i := range events {
		publishAll(t, b, eventMessage(strconv.Itoa(i)))
	}
	bustest.Eventually(t, func() bool { return len(f.allCalls()) > 20 }, "at least one call waits at the gate")
	broker.Stop()
	close(gate)
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool { return isSettled(t, broker, testRoute()) }, "all settled")
	for i := range events {
		require.NotZero(t, f.countOf(strconv.Itoa(i)), i)
	}
}

func TestTriggerRecreatesStreamsAndConsumers(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, f := newBus(t, broker.URL()), newFunction(t, respondWith(204))
	route := testRoute()
	trigger := runTrigger(t, b, testConfig(f), route)
	deliver := func(id string) {
		t.Helper()
		bustest.Eventually(t, func() bool {
			return b.Publish(bustest.Within(t, bustest.Soon), []bus.Message{eventMessage(id)})[0] == nil
		}, "published")
		bustest.Eventually(t, func() bool { return f.countOf(id) > 0 }, "delivered "+id)
	}
	deliver("1")
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.NoError(t, broker.JS().DeleteConsumer(t.Context(), route.Stream, route.Durable))
	deliver("after the consumer was deleted")

	broker.Stop()
	broker.Start(filepath.Join(t.TempDir(), "empty"))
	deliver("after the server came back empty")
}

func TestTriggerKeepsChangedConsumer(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	log := &sandbox.LogBuffer{}
	b, js, f := newBus(t, broker.URL()), broker.JS(), newFunction(t, respondWith(204))
	route := testRoute()
	require.NoError(t, b.Ensure(t.Context()))
	changed := route.consumer()
	changed.MaxAckPending = 2
	_, err := js.CreateConsumer(t.Context(), route.Stream, changed)
	require.NoError(t, err)
	publishAll(t, b, eventMessage("1"))
	trigger := runTriggerLogging(t, log, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.Contains(t, log.String(), "EVENTS/d: max_ack_pending is 2, wanted 4")
	c, err := js.Consumer(t.Context(), route.Stream, route.Durable)
	require.NoError(t, err)
	require.Equal(t, 2, c.CachedInfo().Config.MaxAckPending)
}

func TestBaseURLPerFunction(t *testing.T) {
	t.Parallel()
	r, err := newRoute(testRoute(), &Config{BaseURL: "http://h/of-{function}/"})
	require.NoError(t, err)
	require.Equal(t, "http://h/of-f/events/f", r.url)
}

func TestNewTriggerRejectsBadRoutes(t *testing.T) {
	t.Parallel()
	b := newBus(t, "nats://127.0.0.1:1")
	for want, change := range map[string]func(*Config, *Route){
		"base URL":     func(c *Config, _ *Route) { c.BaseURL = "localhost" },
		"empty":        func(_ *Config, r *Route) { r.Function = "" },
		"InFlight":     func(_ *Config, r *Route) { r.InFlight = 0 },
		"AckWait":      func(_ *Config, r *Route) { r.AckWait = 0 },
		"TickInterval": func(_ *Config, r *Route) { r.TickInterval = time.Millisecond },
	} {
		cfg, route := Config{BaseURL: "http://h"}, testRoute()
		change(&cfg, &route)
		_, err := New(b, slog.New(slog.DiscardHandler), cfg, []Route{route})
		require.ErrorContains(t, err, want)
	}
	for _, r := range Routes(time.Minute) {
		_, err := New(b, slog.New(slog.DiscardHandler), Config{BaseURL: "http://h"}, []Route{r})
		require.NoError(t, err)
	}
	_, err := New(nil, slog.New(slog.DiscardHandler), Config{BaseURL: "http://h"}, nil)
	require.ErrorContains(t, err, "NATS_URL")
}

func TestTriggerRecreatesRemovedStreams(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, js := newBus(t, broker.URL()), broker.JS()
	trigger := newTrigger(t, io.Discard, b, Config{BaseURL: "http://127.0.0.1:1"})
	trigger.checkEvery = 20 * time.Millisecond
	run(t, trigger)
	for range 2 {
		for _, name := range b.StreamNames() {
			bustest.Eventually(t, func() bool { _, err := js.Stream(t.Context(), name); return err == nil }, name)
			require.NoError(t, js.DeleteStream(t.Context(), name))
		}
	}
}
