package bus

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestTriggersShareOneTick(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js, b := broker.js(), newBus(t, broker.server.URL())
	require.NoError(t, b.Ensure(t.Context()))
	// As an earlier version left it.
	_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "sched.sweep.tick"}, jetstream.WithScheduleEvery(time.Second), jetstream.WithScheduleTarget(WakeSweep))
	require.NoError(t, err)
	f := newFunction(t, answering(204))
	route := Route{Stream: StreamWake, Durable: "sweep", Filters: []string{WakeSweep}, Function: "sweep", InFlight: 1, AckWait: time.Second, TickInterval: 2 * time.Second}
	for range 3 {
		trigger := runTrigger(t, newBus(t, broker.server.URL()), testConfig(f), route)
		eventually(t, func() bool { return trigger.Ready() == nil && broker.settled(js, route) }, "woken at its start")
	}
	wake, err := js.Stream(t.Context(), StreamWake)
	require.NoError(t, err)
	eventually(t, func() bool {
		_, err := wake.GetLastMsgForSubject(t.Context(), "sched.sweep.tick")
		return errors.Is(err, jetstream.ErrMsgNotFound)
	}, "the schedule of an earlier version is gone")
	require.NoError(t, wake.Purge(t.Context()))
	before, began := len(f.seen()), time.Now()
	eventually(t, func() bool { return len(f.seen()) >= before+2 }, "ticks")
	require.Greater(t, time.Since(began), 2*time.Second, "one for all")
}
