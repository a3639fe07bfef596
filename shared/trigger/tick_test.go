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
	route := wakeRoute("sweep", 2*time.Second)
	for range 3 {
		trigger := runTrigger(t, newBus(t, broker.URL()), testConfig(f), route)
		bustest.Eventually(t, func() bool { return trigger.Ready() == nil && isSettled(t, broker, route) }, "ready, and the tick of the start is handled")
	}
	wake := broker.Stream(bus.StreamWake)
	require.NoError(t, wake.Purge(t.Context()))
	before, began := len(f.allCalls()), time.Now()
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= before+2 }, "ticks")
	require.Greater(t, time.Since(began), 2*time.Second, "three triggers share one tick")
}

// A wake-up of the queue wechat is stored in WAKE for the function wechat, and also reaches the claims that wait for tasks of this queue.
func TestWeChatQueueWakesClaimsAndFunction(t *testing.T) {
	t.Parallel()
	broker, sender := newBroker(t)
	require.Equal(t, bus.WakeWeChat, bus.QueueSubject("wechat"))
	claim := newBus(t, broker.URL())
	received := make(chan int, 100)
	claim.OnQueue(func(_ string, n int) { received <- n }, func() {})
	bustest.Eventually(t, func() bool { sender.Wake(bus.QueueSubject("other"), 1); return len(received) > 0 }, "subscribed")
	f := newFunction(t, respondWith(204))
	first := runTrigger(t, sender, testConfig(f), wakeRoute("wechat", 0))
	sender.Wake(bus.WakeWeChat, 7)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "called")
	bustest.Eventually(t, func() bool { n := <-received; return n == 7 }, "received")

	sender.WakeAt(bus.WakeWeChat, time.Now().Add(time.Second))
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 2 }, "called at the scheduled time")
	first.stop()
	runTrigger(t, sender, testConfig(f), wakeRoute("wechat", time.Second))
	bustest.Eventually(t, func() bool { return len(f.allCalls()) >= 4 }, "ticks")
}
