package trigger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func TestTriggersShareOneTick(t *testing.T) {
	t.Parallel()
	broker, _ := newBroker(t)
	f := newFunction(t, respondWith(204))
	route := Route{Stream: bus.StreamWake, Durable: "sweep", Filters: []string{bus.WakeSweep}, Function: "sweep", InFlight: 1, AckWait: time.Minute, TickInterval: 2 * time.Second}
	for range 3 {
		trigger := runTrigger(t, newBus(t, broker.URL()), testConfig(f), route)
		bustest.Eventually(t, func() bool { return trigger.Ready() == nil && isSettled(t, broker, route) }, "a starting trigger wakes the function")
	}
	wake := broker.Stream(bus.StreamWake)
	require.NoError(t, wake.Purge(t.Context()))
	before, began := len(f.allCalls()), time.Now()
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= before+2 }, "ticks")
	require.Greater(t, time.Since(began), 2*time.Second, "three triggers share one tick")
}

// Wake-ups of the queue wechat are stored for the function that sends its tasks, and reach pollers too.
func TestWeChatQueueWakesPollersAndFunction(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	require.Equal(t, bus.WakeWeChat, bus.QueueSubject("wechat"))
	listener := newBus(t, broker.URL())
	received := make(chan int, 100)
	listener.OnQueue(func(_ string, n int) { received <- n }, func() {})
	bustest.Eventually(t, func() bool { b.Wake(bus.QueueSubject("other"), 1); return len(received) > 0 }, "subscribed")
	f := newFunction(t, respondWith(204))
	route := Route{Stream: bus.StreamWake, Durable: "wechat", Filters: []string{bus.WakeWeChat}, Function: "wechat", InFlight: 1, AckWait: time.Second}
	first := runTrigger(t, b, testConfig(f), route)
	b.Wake(bus.WakeWeChat, 7)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "called")
	bustest.Eventually(t, func() bool { n := <-received; return n == 7 }, "received")

	b.WakeAt(bus.WakeWeChat, time.Now().Add(time.Second))
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 2 }, "called at the scheduled time")
	first.stop()
	route.TickInterval = time.Second
	runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= 4 }, "ticks")
}
