package trigger

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func sweepRoute() Route {
	return Route{Stream: bus.StreamWake, Durable: "sweep", Filters: []string{bus.WakeSweep}, Function: "sweep", InFlight: 1, AckWait: 2 * time.Second, TickInterval: time.Second}
}

func TestStreamWithoutRoomStopsOnlyItsRoutes(t *testing.T) {
	t.Parallel()
	broker := &broker{t: t, server: sandbox.NATSIn(t, sandbox.NATSOptions{Dir: t.TempDir(), MaxStore: 300 << 20})}
	log := &logged{}
	b := openBus(t, bus.Config{URL: broker.server.URL(), EventsMB: 400, UsersMB: 400, MessagesMB: 400, DeadLettersMB: 400})
	f := newFunction(t, answering(204))
	trigger := runTriggerLogging(t, log, b, testConfig(f), testRoute(), sweepRoute(), batchRoute())
	eventually(t, func() bool { return len(f.seen()) >= 3 }, "sweep is woken, and ticks")
	acceptAll(t, b, 1, 1)
	eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 1 }, "what is accepted is saved")
	eventually(t, func() bool {
		return trigger.Routes()[0].Stopped != nil && ReasonOf(trigger.Routes()[0].Stopped) == bus.ReasonNoRoom
	}, "the reason is known")
	require.EqualError(t, trigger.Ready(), "these routes do not run: d (stream EVENTS cannot be made: nats: API error: code=500 err_code=10047 "+
		"description=insufficient storage resources available: it reserves 400 MiB: raise max_file_store of the NATS servers, or lower SENDONCE_STREAM_EVENTS_MB)")
	require.Equal(t, []bool{false, true, true}, []bool{trigger.Routes()[0].Pulling, trigger.Routes()[1].Pulling, trigger.Routes()[2].Pulling})
	eventually(t, func() bool { return ReasonOf(trigger.Streams()[bus.StreamMessages]) == bus.ReasonNoRoom }, "of streams without routes too")
	backlog, err := trigger.Backlog(within(t, soon))
	require.NoError(t, err)
	require.Contains(t, backlog.Routes, "sweep")
	require.Equal(t, 1, strings.Count(log.String(), "lower SENDONCE_STREAM_MESSAGES_MB"), "it is said once")
}

func TestTakenSubjectsStopOnlyTheirRoutes(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	old := newBus(t, broker.server.URL())
	require.NoError(t, old.Ensure(t.Context()))
	acceptAll(t, old, 1, 1)
	b := openBus(t, bus.Config{URL: broker.server.URL(), AcceptStream: "OTHER"})
	f := newFunction(t, answering(204))
	route := batchRoute()
	route.Stream = "OTHER"
	trigger := runTrigger(t, b, testConfig(f), route, testRoute(), sweepRoute())
	eventually(t, func() bool { return trigger.Routes()[1].Pulling && trigger.Routes()[2].Pulling }, "the others run")
	eventually(t, func() bool { return ReasonOf(trigger.Routes()[0].Stopped) == bus.ReasonSubjectsTaken }, "the reason is known")
	require.ErrorContains(t, trigger.Ready(), "run 'sendonce drain' until it says 0, then 'nats stream rm ACCEPTED'")
	_, err := b.Accept(within(t, soon), acceptance(t, "x", "1"))
	require.ErrorIs(t, err, bus.ErrStreamUnavailable, "nothing is accepted into a stream that nobody saves")
	require.EqualValues(t, 1, broker.info(broker.js(), bus.StreamAccepted).State.Msgs, "what was accepted is untouched")

	require.NoError(t, broker.js().DeleteStream(t.Context(), bus.StreamAccepted))
	eventually(t, func() bool { return trigger.Ready() == nil }, "it runs without a restart")
}
