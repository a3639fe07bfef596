package trigger

import (
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// startWithReplacedWakeUp runs a trigger and publishes two wake-ups; the second replaces the first in the stream. The
// call for the second gets 204 while the call for the first is still in progress. The first call fails when fail is
// closed.
func startWithReplacedWakeUp(t *testing.T, change func(*Config)) (f *function, trigger *runningTrigger, js jetstream.JetStream, fail chan struct{}) {
	t.Helper()
	broker, b := newBroker(t)
	fail = make(chan struct{})
	f = newFunction(t, func(w http.ResponseWriter, _ call, n int) {
		if n == 1 {
			<-fail
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	cfg := testConfig(f)
	change(&cfg)
	trigger = runTrigger(t, b, cfg, wakeRoute("deliver", 0))
	b.Wake(bus.WakeDeliver, 1)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "the first call begins")
	b.Wake(bus.WakeDeliver, 1)
	bustest.Eventually(t, func() bool { return trigger.Counts()["deliver"].Acked == 1 }, "the second wake-up is acknowledged")
	return f, trigger, broker.JS(), fail
}

func TestFailedWakeUpIsRepeatedIfReplaced(t *testing.T) {
	t.Parallel()
	f, trigger, js, fail := startWithReplacedWakeUp(t, func(*Config) {})
	close(fail)
	bustest.Eventually(t, func() bool { return trigger.Counts()["deliver"].Acked == 2 }, "the wake-up is repeated")
	require.Len(t, f.allCalls(), 3)
	require.Equal(t, RouteCounts{Deliveries: 3, Acked: 2, Retried: 1}, trigger.Counts()["deliver"])
	consumer, err := js.Consumer(t.Context(), bus.StreamWake, "deliver")
	require.NoError(t, err)
	require.EqualValues(t, 3, consumer.CachedInfo().Delivered.Consumer, "two wake-ups and the one that was published again: NATS redelivers nothing")
}

func TestStopPublishesPendingRepeat(t *testing.T) {
	t.Parallel()
	_, trigger, js, fail := startWithReplacedWakeUp(t, func(c *Config) { c.MinBackoff, c.MaxBackoff = time.Hour, time.Hour })
	close(fail)
	bustest.Eventually(t, func() bool { return trigger.Counts()["deliver"].Retried == 1 }, "the first call fails")
	trigger.stop()
	bustest.Eventually(t, func() bool {
		consumer, err := js.Consumer(t.Context(), bus.StreamWake, "deliver")
		return err == nil && consumer.CachedInfo().NumPending == 1
	}, "a wake-up is in the stream again, for another trigger")
}
