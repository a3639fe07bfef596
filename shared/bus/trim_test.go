package bus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEventsStayUntilTheyAreRecordedAndOld(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	b, js := newBus(t, broker.server.URL()), broker.js()
	require.NoError(t, b.TrimEvents(t.Context()), "nothing is there yet")
	require.NoError(t, b.Ensure(t.Context()))
	publishAll(t, b, eventMessage("1"), eventMessage("2"), eventMessage("3"))
	require.NoError(t, b.TrimEvents(t.Context()), "nobody records")
	require.EqualValues(t, 3, broker.info(js, StreamEvents).State.Msgs)

	f := newFunction(t, answering(204))
	route := testRoute()
	route.Durable = recordRoute
	runTrigger(t, b, testConfig(f), route)
	eventually(t, func() bool { return broker.settled(js, route) }, "recorded")
	require.NoError(t, b.TrimEvents(t.Context()))
	require.EqualValues(t, 3, broker.info(js, StreamEvents).State.Msgs, "they are young")

	stream, err := js.Stream(t.Context(), StreamEvents)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), 2))
	second, err := stream.GetMsg(t.Context(), 3)
	require.NoError(t, err)
	old, err := olderThan(t.Context(), stream, 1, 3, second.Time)
	require.NoError(t, err)
	require.EqualValues(t, 2, old, "an empty place is as old as what is before it")
	old, err = olderThan(t.Context(), stream, 1, 3, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 3, old)
}
