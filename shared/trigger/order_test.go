package trigger

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// failing is a function that returns 503 now and then, slowly enough that
// triggers end in the middle of it.
func failing(t *testing.T, l *ledger) *function {
	return newFunction(t, func(w http.ResponseWriter, c call, n int) {
		<-time.After(10 * time.Millisecond)
		if n%3 == 1 {
			w.WriteHeader(503)
			return
		}
		l.take(t, c)
	})
}

func TestOrderSurvivesKilledTrigger(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(r *running, b *bus.Bus){
		"stopped": func(r *running, _ *bus.Bus) { r.stop() },
		"cut off from NATS": func(r *running, b *bus.Bus) {
			l, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
			require.NoError(t, err)
			l.JetStream().Conn().Close() // nothing of what it holds is returned
			r.cancel()
			b.Close()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			broker := bustest.NewBroker(t)
			url := broker.URL()
			var l ledger
			f := failing(t, &l)
			publisher := newBus(t, url)
			require.NoError(t, publisher.Ensure(t.Context()))
			route := batchRoute()
			route.AckWait = time.Second
			buses := []*bus.Bus{newBus(t, url), newBus(t, url)}
			triggers := []*running{runTrigger(t, buses[0], testConfig(f), route), runTrigger(t, buses[1], testConfig(f), route)}
			acked := func() (n uint64) {
				for _, r := range triggers {
					n += r.Counts()["save-1-of-1"].Acked
				}
				return n
			}
			const events = 300
			var publishing sync.WaitGroup
			publishing.Go(func() {
				for i := 1; i <= events; i++ {
					if _, err := publisher.Accept(bustest.Within(t, bustest.Soon), acceptance(t, strconv.Itoa(i), "x")); err != nil {
						t.Error(err)
					}
				}
			})
			for round := range 2 {
				want := uint64(50 * (round + 1))
				bustest.Eventually(t, func() bool { return acked() >= want }, "going")
				active := 0
				if triggers[1].Counts()["save-1-of-1"].Acked > triggers[0].Counts()["save-1-of-1"].Acked {
					active = 1
				}
				end(triggers[active], buses[active])
				before := triggers[active]
				buses[active] = newBus(t, url)
				triggers[active] = runTrigger(t, buses[active], testConfig(f), route)
				triggers = append(triggers, before)
			}
			publishing.Wait()
			bustest.Eventually(t, func() bool { return len(l.taken()) == events }, "all taken")
			require.Equal(t, numbers(1, events), l.taken())
		})
	}
}

func TestOrderSurvivesLostPin(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	url, js := broker.URL(), broker.JS()
	var l ledger
	working, release := context.WithCancel(t.Context())
	f := newFunction(t, func(_ http.ResponseWriter, c call, n int) {
		if n == 1 {
			<-working.Done()
		}
		l.take(t, c)
	})
	defer release()
	one, two := newBus(t, url), newBus(t, url)
	require.NoError(t, one.Ensure(t.Context()))
	route := batchRoute()
	first := runTrigger(t, one, testConfig(f), route)
	acceptAll(t, one, 1, 1)
	bustest.Eventually(t, func() bool { return len(f.seen()) == 1 }, "one trigger works")
	log := &sandbox.LogBuffer{}
	second := runTriggerLogging(t, log, two, testConfig(f), route)
	s, err := js.Stream(t.Context(), route.Stream)
	require.NoError(t, err)
	require.NoError(t, s.UnpinConsumer(t.Context(), route.Durable, priorityGroup))
	acceptAll(t, one, 2, 5)
	bustest.Eventually(t, func() bool { return strings.Contains(log.String(), "another trigger holds messages") }, "the other has the rest and waits")
	require.Len(t, f.seen(), 1)
	release()
	bustest.Eventually(t, func() bool { return second.Counts()["save-1-of-1"].Acked == 4 }, "then it goes on")
	require.EqualValues(t, 1, first.Counts()["save-1-of-1"].Acked)
	require.Equal(t, numbers(1, 5), l.taken())
}

func TestStoppedTriggerIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	url := broker.URL()
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, n int) {
		if n <= 3 {
			w.WriteHeader(503)
			return
		}
		l.take(t, c)
	})
	one, two := newBus(t, url), newBus(t, url)
	require.NoError(t, one.Ensure(t.Context()))
	route := batchRoute()
	route.AckWait = 30 * time.Second // longer than this test waits
	cfg := testConfig(f)
	cfg.MinBackoff, cfg.MaxBackoff = bustest.Soon, bustest.Soon
	first := runTrigger(t, one, cfg, route)
	acceptAll(t, one, 1, 5)
	bustest.Eventually(t, func() bool { return first.Counts()["save-1-of-1"].Retried == 1 }, "it holds the batch for another try")
	second := runTrigger(t, two, testConfig(f), route)
	first.stop()
	acceptAll(t, two, 6, 9)
	bustest.Eventually(t, func() bool { return second.Counts()["save-1-of-1"].Acked == 9 }, "acknowledged")
	require.Equal(t, numbers(1, 9), l.taken())
}

func TestOrderSurvivesRestartOfNATS(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	var l ledger
	gate := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, c call, n int) {
		if n == 2 {
			<-gate
		}
		l.take(t, c)
	})
	require.NoError(t, b.Ensure(t.Context()))
	acceptAll(t, b, 1, 40)
	runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return len(f.seen()) == 2 }, "in the middle of it")
	broker.Stop()
	close(gate)
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool {
		_, err := b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, "41", "x"))
		return err == nil
	}, "accepted")
	bustest.Eventually(t, func() bool { return settled(t, broker.JS(), batchRoute()) }, "settled")
	require.Equal(t, numbers(1, 41), l.taken())
}

func TestTriggerYieldsWhenFunctionIsUnreachable(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	url := broker.URL()
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.take(t, c) })
	nowhere := testConfig(f)
	nowhere.BaseURL = "http://127.0.0.1:1"
	nowhere.MaxBackoff = 50 * time.Millisecond
	one, two := newBus(t, url), newBus(t, url)
	require.NoError(t, one.Ensure(t.Context()))
	acceptAll(t, one, 1, 30)
	lost := runTrigger(t, one, nowhere, batchRoute())
	bustest.Eventually(t, func() bool { return lost.Counts()["save-1-of-1"].Retried > 0 }, "it holds what it cannot deliver")
	runTrigger(t, two, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return len(l.taken()) == 30 }, "the other delivers")
	require.Equal(t, numbers(1, 30), l.taken())
}

func TestOrderWithLateAcknowledgement(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	url, js := broker.URL(), broker.JS()
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.take(t, c) })
	b := newBus(t, url)
	require.NoError(t, b.Ensure(t.Context()))
	acceptAll(t, b, 1, 40)
	route := batchRoute()
	route.AckWait = 30 * time.Second // nothing is redelivered that nobody hands back
	consumer, err := js.CreateConsumer(t.Context(), route.Stream, route.consumer())
	require.NoError(t, err)
	fetched, err := consumer.Fetch(20, jetstream.FetchPriorityGroup(priorityGroup), jetstream.FetchMaxWait(bustest.Soon))
	require.NoError(t, err)
	var had []jetstream.Msg
	for m := range fetched.Messages() {
		had = append(had, m)
	}
	require.Len(t, had, 20)

	log := &sandbox.LogBuffer{}
	s, err := js.Stream(t.Context(), route.Stream)
	require.NoError(t, err)
	require.NoError(t, s.UnpinConsumer(t.Context(), route.Durable, priorityGroup))
	for _, m := range had[:10] {
		require.NoError(t, m.Nak())
	}
	runTriggerLogging(t, log, newBus(t, url), testConfig(f), route)
	bustest.Eventually(t, func() bool { return strings.Contains(log.String(), "another trigger holds messages") }, "it has the first and waits for the rest")
	_, err = js.Conn().RequestWithContext(t.Context(), had[9].Reply(), []byte("+ACK"))
	require.NoError(t, err)
	require.Never(t, func() bool { return len(f.seen()) > 0 }, 3*othersPoll, bustest.Poll, "the second ten are still elsewhere")
	for _, m := range had[10:] {
		require.NoError(t, m.Nak())
	}
	bustest.Eventually(t, func() bool { return settled(t, js, route) }, "settled")
	require.Equal(t, numbers(11, 40), l.taken(), "the first ten were taken by the other")
}
