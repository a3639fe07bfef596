package trigger

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func unorderedRoute() Route {
	r := testRoute()
	r.InFlight, r.UnorderedBatch = 40, 20
	return r
}

func TestUnorderedEventsArePostedTogether(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		if slices.Contains(idsOf(t, c), "poison") {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		l.record(t, c)
	})
	for _, id := range numbers(1, 100) {
		publishAll(t, b, eventMessage(id))
	}
	trigger := runTrigger(t, b, testConfig(f), unorderedRoute())
	bustest.Eventually(t, func() bool { return isSettled(t, broker, unorderedRoute()) }, "all settled")
	ids := l.recorded()
	slices.SortFunc(ids, func(a, b string) int { x, _ := strconv.Atoi(a); y, _ := strconv.Atoi(b); return x - y })
	require.Equal(t, numbers(1, 100), ids)
	require.LessOrEqual(t, len(f.allCalls()), 25, "calls for 100 events")
	for _, c := range f.allCalls() {
		require.NotContains(t, c.body, `"deliveryattempt":"0"`)
	}
	publishAll(t, b, eventMessage("alone"))
	bustest.Eventually(t, func() bool { return f.countOf("alone") == 1 }, "a single event is not posted as a batch")

	publishAll(t, b, eventMessage("101"), eventMessage("poison"), eventMessage("102"))
	bustest.Eventually(t, func() bool {
		return isSettled(t, broker, unorderedRoute()) && trigger.Counts()["d"].DeadLettered == 1
	}, "the other events of the batch are accepted")
	require.Subset(t, l.recorded(), []string{"101", "102"})
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 103 }, "all others are acknowledged") // they are counted after the server has acknowledged them
}

func TestUnorderedEventsAreRetried(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, n int) {
		if n <= 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		l.record(t, c)
	})
	for _, id := range numbers(1, 50) {
		publishAll(t, b, eventMessage(id))
	}
	runTrigger(t, b, testConfig(f), unorderedRoute())
	bustest.Eventually(t, func() bool { return isSettled(t, broker, unorderedRoute()) }, "all settled")
	require.ElementsMatch(t, numbers(1, 50), l.recorded())
}

func TestHangingPostDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	release := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) {
		if slices.Contains(idsOf(t, c), "1") {
			<-release
		}
	})
	for _, id := range numbers(1, 100) {
		publishAll(t, b, eventMessage(id))
	}
	route := unorderedRoute()
	route.AckWait = time.Second
	trigger := runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked >= 80 }, "the other events are accepted")
	close(release)
	bustest.Eventually(t, func() bool { return isSettled(t, broker, route) }, "all settled")
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked >= 100 }, "all counted") // they are counted after the server has acknowledged them
	require.EqualValues(t, 100, trigger.Counts()["d"].Acked, "each event once")
}
