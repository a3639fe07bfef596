package trigger

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

func TestStreamWithoutRoomStopsOnlyItsRoutes(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBrokerWith(t, natsserver.Options{Dir: t.TempDir(), MaxStore: 300 << 20})
	log := &sandbox.LogBuffer{}
	b := openBus(t, bus.Config{URL: broker.URL(), EventsMB: 400, UsersMB: 400, MessagesMB: 400, DeadLettersMB: 400})
	f := newFunction(t, respondWith(204))
	trigger := runTriggerLogging(t, log, b, testConfig(f), testRoute(), wakeRoute("sweep", time.Second), batchRoute())
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= 3 }, "sweep is woken on connect and by ticks")
	acceptAll(t, b, 1, 1)
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 1 }, "the accepted message is saved")
	bustest.Eventually(t, func() bool {
		return trigger.Routes()[0].Stopped != nil && reasonOf(trigger.Routes()[0].Stopped) == bus.ReasonNoRoom
	}, "the reason is reported")
	require.EqualError(t, trigger.Ready(), "these routes do not run: d (stream EVENTS cannot be created: nats: API error: code=500 err_code=10047 "+
		"description=insufficient storage resources available: the stream reserves 400 MiB: raise max_file_store of the NATS servers, or lower SENDONCE_STREAM_EVENTS_MB)")
	require.Equal(t, []bool{false, true, true}, []bool{trigger.Routes()[0].Pulling, trigger.Routes()[1].Pulling, trigger.Routes()[2].Pulling})
	bustest.Eventually(t, func() bool { return reasonOf(trigger.Streams()[bus.StreamMessages]) == bus.ReasonNoRoom }, "the reason is reported also for a stream without routes")
	backlog, err := trigger.Backlog(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.Contains(t, backlog.Routes, "sweep")
	require.Equal(t, 1, strings.Count(log.String(), "lower SENDONCE_STREAM_MESSAGES_MB"), "it is logged once")
}

func TestTakenSubjectsStopOnlyTheirRoutes(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	old := newBus(t, broker.URL())
	require.NoError(t, old.Ensure(t.Context()))
	acceptAll(t, old, 1, 1)
	b := openBus(t, bus.Config{URL: broker.URL(), AcceptStream: "OTHER"})
	f := newFunction(t, respondWith(204))
	route := batchRoute()
	route.Stream = "OTHER"
	trigger := runTrigger(t, b, testConfig(f), route, testRoute(), wakeRoute("sweep", time.Second))
	bustest.Eventually(t, func() bool { return trigger.Routes()[1].Pulling && trigger.Routes()[2].Pulling }, "the other routes run")
	bustest.Eventually(t, func() bool { return reasonOf(trigger.Routes()[0].Stopped) == bus.ReasonSubjectsTaken }, "the reason is reported")
	require.ErrorContains(t, trigger.Ready(), "run 'sendonce drain' until it says 0, then 'nats stream rm ACCEPTED'")
	_, err := b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, "x", "1"))
	require.ErrorIs(t, err, bus.ErrStreamUnavailable, "nothing is accepted into a stream that is not saved")
	require.EqualValues(t, 1, broker.Info(bus.StreamAccepted).State.Msgs, "accepted messages are kept")

	require.NoError(t, broker.JS().DeleteStream(t.Context(), bus.StreamAccepted))
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run without a restart")
}

func TestNotReadyWhileWakeUpsAreNotStored(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	f := newFunction(t, respondWith(204))
	log := &sandbox.LogBuffer{}
	trigger := newTrigger(t, log, b, testConfig(f), testRoute(), wakeRoute("sweep", time.Second))
	trigger.wakeCheckEvery = 20 * time.Millisecond
	run(t, trigger)
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "all routes run")

	// The stream refuses each check, as after a full disk.
	broker.ChangeStream(bus.StreamWake, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 })
	bustest.Eventually(t, func() bool { return trigger.Ready() != nil }, "the trigger is not ready")
	require.ErrorContains(t, trigger.Ready(), "the stream WAKE stores no wake-ups")
	require.ErrorContains(t, trigger.Ready(), "if the disk of nats-server was full, free it and restart nats-server")
	publishAll(t, b, eventMessage("1"))
	bustest.Eventually(t, func() bool { return f.countOf("1") == 1 }, "routes of other streams go on")

	broker.ChangeStream(bus.StreamWake, func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil }, "ready again")
	require.Equal(t, 1, strings.Count(log.String(), "stores no wake-ups"), "it is logged once")
}
