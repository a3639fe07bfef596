package trigger

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

func batchRoute() Route {
	r := SaveRoutes(settings.TwoPhase{Shards: 1, BatchSize: 10, BatchWait: 200 * time.Millisecond}, 0)[1]
	r.AckWait, r.Timeout = 2*time.Second, bustest.Soon
	return r
}

// ledger has the ids of the events that a function accepted, in the order of its calls.
type ledger struct {
	mu  sync.Mutex
	ids []string
}

// record adds the ids of the events of a call.
func (l *ledger) record(t *testing.T, c call) {
	ids := idsOf(t, c)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if !slices.Contains(l.ids, id) { // a repeated event is ignored, as by a primary key
			l.ids = append(l.ids, id)
		}
	}
}

func (l *ledger) recorded() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids)
}

func idsOf(t *testing.T, c call) []string {
	if kind := c.header.Get("Content-Type"); kind != BatchType {
		return []string{c.id}
	}
	var events []cloudevents.Event
	if err := json.Unmarshal([]byte(c.body), &events); err != nil {
		t.Error(err)
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID()
	}
	return ids
}

func numbers(from, to int) []string {
	ids := make([]string, 0, to-from+1)
	for i := from; i <= to; i++ {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids
}

func TestBatchKeepsStreamOrder(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, respondWith(204))
	first := acceptance(t, "1", "<é>&")
	_, err := b.Accept(t.Context(), first)
	require.NoError(t, err)
	plain := acceptance(t, "2", "x")
	require.NoError(t, plain.Event.SetData("text/plain", []byte("\xff\x00")))
	_, err = b.Accept(t.Context(), plain)
	require.NoError(t, err)
	acceptAll(t, b, 3, 25)
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 25 }, "acknowledged")
	require.Equal(t, RouteCounts{Deliveries: 3, Acked: 25}, trigger.Counts()["save-1-of-1"])
	calls := f.allCalls()
	require.Equal(t, numbers(1, 10), idsOf(t, calls[0]))
	require.Equal(t, numbers(11, 20), idsOf(t, calls[1]))
	require.Equal(t, numbers(21, 25), idsOf(t, calls[2]))
	require.Equal(t, "POST /events/save", calls[0].route)
	require.Equal(t, "trigger token", calls[0].user+" "+calls[0].password)

	var events []cloudevents.Event
	require.NoError(t, json.Unmarshal([]byte(calls[0].body), &events))
	want := first.Event.Clone()
	want.SetExtension("acceptseq", "1")
	want.SetExtension("fp", first.Fingerprint)
	want.SetExtension("deliveryattempt", "1")
	require.Equal(t, want.Context, events[0].Context)
	require.Equal(t, want.Data(), events[0].Data(), "byte for byte")
	require.Equal(t, []byte("\xff\x00"), events[1].Data())
	require.Equal(t, "text/plain", events[1].DataContentType())
}

func TestSingleEventIsPostedAlone(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, respondWith(204))
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	acceptAll(t, b, 1, 1)
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 1 }, "acknowledged")
	c := f.allCalls()[0]
	require.JSONEq(t, `{"text":"x"}`, c.body)
	for name, want := range map[string]string{
		"Ce-Id": "1", "Ce-Acceptseq": "1", "Ce-Fp": "print of x", "Ce-Deliveryattempt": "1", "Content-Type": "application/json",
	} {
		require.Equal(t, want, c.header.Get(name), name)
	}
}

func TestBatchRetryKeepsOrder(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, n int) {
		switch n % 4 {
		case 1:
			w.WriteHeader(503)
		case 2:
			w.WriteHeader(401)
		default:
			l.record(t, c)
		}
	})
	acceptAll(t, b, 1, 5)
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	acceptAll(t, b, 6, 60)
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 60 }, "acknowledged")
	require.Equal(t, numbers(1, 60), l.recorded())
	counts := trigger.Counts()["save-1-of-1"]
	require.Positive(t, counts.Retried)
	require.Positive(t, counts.Denied)
	calls := f.allCalls()
	require.Equal(t, idsOf(t, calls[0]), idsOf(t, calls[1]))
	require.Equal(t, idsOf(t, calls[0]), idsOf(t, calls[2]))
	require.Contains(t, calls[2].body, `"deliveryattempt":"3"`)
}

func TestRefusedEventOfBatchIsDeadLetteredAlone(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		if slices.Contains(idsOf(t, c), "4") {
			w.WriteHeader(422)
			_, _ = w.Write([]byte("not this one"))
			return
		}
		l.record(t, c)
	})
	acceptAll(t, b, 1, 25)
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 24 }, "acknowledged")
	require.Equal(t, append(numbers(1, 3), numbers(5, 25)...), l.recorded())
	require.Equal(t, RouteCounts{Deliveries: 13, Acked: 24, DeadLettered: 1}, trigger.Counts()["save-1-of-1"])
	bustest.Eventually(t, func() bool { return isSettled(t, broker, batchRoute()) }, "settled")
	s := broker.Stream(bus.StreamDeadLetters)
	require.EqualValues(t, 1, s.CachedInfo().State.Msgs)
	m, err := s.GetLastMsgForSubject(t.Context(), "dlq.ACCEPTED.save-1-of-1")
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"x"}`, string(m.Data))
	for name, want := range map[string]string{
		"Nats-Msg-Id": "dlq-ACCEPTED-4-save-1-of-1-4", "ce-id": "4", "ce-fp": "print of x", "ce-acceptseq": "4",
		"dlq-function": "save", "dlq-subject": bus.AcceptSubject(testSender, "4"), "dlq-status": "422", "dlq-reason": "422 Unprocessable Entity not this one",
	} {
		require.Equal(t, want, m.Header.Get(name), name)
	}
	kept, err := b.LookUp(t.Context(), "4")
	require.NoError(t, err)
	require.NotNil(t, kept, "ACCEPTED keeps it too")
}

func TestFullDeadLettersDoNotBlockBatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record int // response of the function to a RefusedType event
		want   RouteCounts
	}{
		"the function records it": {http.StatusNoContent, RouteCounts{Acked: 3, DeadLettered: 1}},
		"the function refuses it": {http.StatusUnprocessableEntity, RouteCounts{Acked: 3, SetAside: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := bustest.NewBroker(t)
			b := newBus(t, broker.URL())
			var l ledger
			f := refusingFunction(t, "2", func() int { return c.record }, func(_ http.ResponseWriter, c call) { l.record(t, c) })
			trigger := runTrigger(t, b, testConfig(f), batchRoute())
			trigger.fillDeadLetters(t, broker)
			acceptAll(t, b, 1, 4)
			bustest.Eventually(t, func() bool { return isSettled(t, broker, batchRoute()) }, "settled")
			bustest.Eventually(t, func() bool { // an event is counted only after it is acknowledged
				got := trigger.Counts()["save-1-of-1"]
				got.Deliveries, got.Retried = 0, 0
				return got == c.want
			}, "counted")
			require.ElementsMatch(t, []string{"1", "3", "4"}, l.recorded())
			require.EqualValues(t, 4, broker.Info(bus.StreamAccepted).State.Msgs, "no accepted message is lost")
		})
	}
}

func TestSlowBatchIsPostedOnce(t *testing.T) {
	t.Parallel()
	broker, one := newBroker(t)
	f := newFunction(t, func(_ http.ResponseWriter, _ call, _ int) { time.Sleep(3500 * time.Millisecond) })
	route := batchRoute()
	route.AckWait = time.Second
	two := newBus(t, broker.URL())
	acceptAll(t, one, 1, 10)
	first, second := runTrigger(t, one, testConfig(f), route), runTrigger(t, two, testConfig(f), route)
	bustest.Eventually(t, func() bool { return first.Counts()["save-1-of-1"].Acked+second.Counts()["save-1-of-1"].Acked == 10 }, "acknowledged")
	require.Len(t, f.allCalls(), 1)
}

func TestLargeBatchIsSplit(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.record(t, c) })
	for i := range 10 {
		large := acceptance(t, strconv.Itoa(i+1), strings.Repeat("x", 250_000))
		large.Fingerprint = "f"
		_, err := b.Accept(bustest.Within(t, bustest.Soon), large)
		require.NoError(t, err)
	}
	route := batchRoute()
	route.BatchWait = 2 * time.Second // the batch ends earlier, when it has all ten
	trigger := runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 10 }, "acknowledged")
	require.Equal(t, numbers(1, 10), l.recorded())
	for _, c := range f.allCalls() {
		require.LessOrEqual(t, len(c.body), batchBytes+4096)
	}
	require.EqualValues(t, 3, trigger.Counts()["save-1-of-1"].Deliveries)
}

func TestBatchRejectsUnorderedConsumer(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	log := &sandbox.LogBuffer{}
	b, js, f := newBus(t, broker.URL()), broker.JS(), newFunction(t, respondWith(204))
	require.NoError(t, b.Ensure(t.Context()))
	route := batchRoute()
	config := route.consumer()
	config.AckPolicy, config.PriorityPolicy, config.PriorityGroups, config.PinnedTTL = jetstream.AckExplicitPolicy, jetstream.PriorityPolicyNone, nil, 0
	_, err := js.CreateConsumer(t.Context(), route.Stream, config)
	require.NoError(t, err)
	acceptAll(t, b, 1, 3)
	trigger := runTriggerLogging(t, log, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return strings.Contains(log.String(), "cannot keep the order of batches: delete it") }, "logged")
	require.Empty(t, f.allCalls())
	require.NoError(t, js.DeleteConsumer(t.Context(), route.Stream, route.Durable))
	bustest.Eventually(t, func() bool { return trigger.Counts()[route.Durable].Acked == 3 }, "the trigger creates an ordered consumer")
}

func TestFailingBatchIsPostedOneByOne(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		if ids := idsOf(t, c); slices.Contains(ids, "3") && len(ids) > 1 {
			w.WriteHeader(500)
			return
		}
		l.record(t, c)
	})
	acceptAll(t, b, 1, 5)
	trigger := runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["save-1-of-1"].Acked == 5 }, "acknowledged")
	require.Equal(t, numbers(1, 5), l.recorded())
}

// While messages are accepted, the number of shards changes from one to four and back. The messages of each sender
// keep their order.
func TestChangingShardsKeepsMessagesAndOrder(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.record(t, c) })
	const senders = 20
	accepted := 0
	accept := func(n int) {
		for range n {
			accepted++
			a := acceptance(t, strconv.Itoa(accepted), "x")
			a.Subject = bus.AcceptSubject("sender "+strconv.Itoa(accepted%senders), strconv.Itoa(accepted))
			_, err := b.Accept(bustest.Within(t, bustest.Soon), a)
			require.NoError(t, err)
		}
	}
	for _, shards := range []int{1, 4, 1} {
		accept(50)
		var triggers []*runningTrigger
		for _, route := range SaveRoutes(settings.TwoPhase{Shards: shards, BatchSize: 10}, 0)[1:] {
			route.AckWait, route.Timeout = 2*time.Second, bustest.Soon
			triggers = append(triggers, runTrigger(t, b, testConfig(f), route))
		}
		accept(50)
		want := accepted - 10
		bustest.Eventually(t, func() bool { return len(l.recorded()) >= want }, "nearly all are recorded")
		for _, r := range triggers {
			r.stop()
		}
	}
	runTrigger(t, b, testConfig(f), SaveRoutes(settings.TwoPhase{Shards: 1, BatchSize: 10}, 0)[1])
	bustest.Eventually(t, func() bool { return len(l.recorded()) == accepted }, "all are recorded")
	newest := map[int]int{}
	for _, id := range l.recorded() {
		n, err := strconv.Atoi(id)
		require.NoError(t, err)
		require.Greater(t, n, newest[n%senders], "the order of each sender")
		newest[n%senders] = n
	}
}

func TestSaveRoutesPerShard(t *testing.T) {
	t.Parallel()
	routes := SaveRoutes(settings.TwoPhase{Shards: 2, BatchSize: 100, BatchWait: 2 * time.Millisecond, DeliverBeforeSaved: true}, time.Minute)
	durables := make([]string, len(routes))
	for i, r := range routes {
		durables[i] = r.Durable + " " + r.Stream + " " + strconv.Itoa(len(r.Filters)) + " " + r.Filters[0] + " " + r.Function
	}
	require.Equal(t, []string{
		"save WAKE 1 wake.save save",
		"save-1-of-2 ACCEPTED 32 acc.0.> save", "deliver-1-of-2 ACCEPTED 32 acc.0.> deliver",
		"save-2-of-2 ACCEPTED 32 acc.1.> save", "deliver-2-of-2 ACCEPTED 32 acc.1.> deliver",
	}, durables)
	_, err := New(newBus(t, "nats://127.0.0.1:1"), slog.New(slog.DiscardHandler), Config{BaseURL: "http://h"}, routes)
	require.NoError(t, err)
	c := routes[1].consumer()
	require.Equal(t, 200, c.MaxAckPending)
	require.Equal(t, jetstream.PriorityPolicyPinned, c.PriorityPolicy)
	require.Greater(t, c.PinnedTTL, c.AckWait)
	require.Len(t, SaveRoutes(settings.TwoPhase{Shards: 3, BatchSize: 1, Stream: "OTHER"}, 0), 4)
	require.Equal(t, "OTHER", SaveRoutes(settings.TwoPhase{Shards: 3, BatchSize: 1, Stream: "OTHER"}, 0)[1].Stream)
}
