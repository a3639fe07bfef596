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

// failingFunction returns 503 for every third call. Each call takes 10 ms, so that triggers are likely to be stopped
// during a call.
func failingFunction(t *testing.T, l *ledger) *function {
	return newFunction(t, func(w http.ResponseWriter, c call, n int) {
		time.Sleep(10 * time.Millisecond)
		if n%3 == 1 {
			w.WriteHeader(503)
			return
		}
		l.record(t, c)
	})
}

func TestOrderSurvivesLossOfTrigger(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *runningTrigger, b *bus.Bus){
		"stopped": func(r *runningTrigger, _ *bus.Bus) { r.stop() },
		"cut off from NATS": func(r *runningTrigger, b *bus.Bus) {
			conn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
			require.NoError(t, err)
			conn.JetStream().Conn().Close() // so it cannot return the messages that it holds
			r.cancel()
			b.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := bustest.NewBroker(t)
			url := broker.URL()
			var l ledger
			f := failingFunction(t, &l)
			publisher := newBus(t, url)
			require.NoError(t, publisher.Ensure(t.Context()))
			route := batchRoute()
			route.AckWait = time.Second
			buses := []*bus.Bus{newBus(t, url), newBus(t, url)}
			triggers := []*runningTrigger{runTrigger(t, buses[0], testConfig(f), route), runTrigger(t, buses[1], testConfig(f), route)}
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
				bustest.Eventually(t, func() bool { return acked() >= want }, "some batches are acknowledged")
				active := 0
				if triggers[1].Counts()["save-1-of-1"].Acked > triggers[0].Counts()["save-1-of-1"].Acked {
					active = 1
				}
				end(triggers[active], buses[active])
				ended := triggers[active]
				buses[active] = newBus(t, url)
				triggers[active] = runTrigger(t, buses[active], testConfig(f), route)
				triggers = append(triggers, ended) // still counted by acked
			}
			publishing.Wait()
			bustest.Eventually(t, func() bool { return len(l.recorded()) == events }, "all are recorded")
			require.Equal(t, numbers(1, events), l.recorded())
		})
	}
}

func TestOrderSurvivesLostPin(t *testing.T) {
	t.Parallel()
	broker, one := newBroker(t)
	var l ledger
	working, release := context.WithCancel(t.Context())
	f := newFunction(t, func(_ http.ResponseWriter, c call, n int) {
		if n == 1 {
			<-working.Done()
		}
		l.record(t, c)
	})
	defer release()
	two := newBus(t, broker.URL())
	route := batchRoute()
	first := runTrigger(t, one, testConfig(f), route)
	acceptAll(t, one, 1, 1)
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 1 }, "the first trigger posts")
	log := &sandbox.LogBuffer{}
	second := runTriggerLogging(t, log, two, testConfig(f), route)
	s := broker.Stream(route.Stream)
	require.NoError(t, s.UnpinConsumer(t.Context(), route.Durable, priorityGroup))
	acceptAll(t, one, 2, 5)
	bustest.Eventually(t, func() bool { return strings.Contains(log.String(), "another trigger holds messages") }, "the second trigger has the other messages and waits")
	require.Len(t, f.allCalls(), 1)
	release()
	bustest.Eventually(t, func() bool { return second.Counts()["save-1-of-1"].Acked == 4 }, "the second trigger delivers the rest")
	require.EqualValues(t, 1, first.Counts()["save-1-of-1"].Acked)
	require.Equal(t, numbers(1, 5), l.recorded())
}

func TestStoppedTriggerIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	broker, one := newBroker(t)
	var l ledger
	f := newFunction(t, func(w http.ResponseWriter, c call, n int) {
		if n <= 3 {
			w.WriteHeader(503)
			return
		}
		l.record(t, c)
	})
	two := newBus(t, broker.URL())
	route := batchRoute()
	route.AckWait = 30 * time.Second // longer than this test waits for a redelivery
	cfg := testConfig(f)
	cfg.MinBackoff, cfg.MaxBackoff = bustest.Soon, bustest.Soon
	first := runTrigger(t, one, cfg, route)
	acceptAll(t, one, 1, 5)
	bustest.Eventually(t, func() bool { return first.Counts()["save-1-of-1"].Retried == 1 }, "the first trigger holds the batch for a retry")
	second := runTrigger(t, two, testConfig(f), route)
	first.stop()
	acceptAll(t, two, 6, 9)
	bustest.Eventually(t, func() bool { return second.Counts()["save-1-of-1"].Acked == 9 }, "acknowledged")
	require.Equal(t, numbers(1, 9), l.recorded())
}

func TestOrderSurvivesRestartOfNATS(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	var l ledger
	gate := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, c call, n int) {
		if n == 2 {
			<-gate
		}
		l.record(t, c)
	})
	acceptAll(t, b, 1, 40)
	runTrigger(t, b, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return len(f.allCalls()) == 2 }, "the second batch is posted")
	broker.Stop()
	close(gate)
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool {
		_, err := b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, "41", "x"))
		return err == nil
	}, "accepted")
	bustest.Eventually(t, func() bool { return isSettled(t, broker, batchRoute()) }, "settled")
	require.Equal(t, numbers(1, 41), l.recorded())
}

func TestTriggerYieldsWhenFunctionIsUnreachable(t *testing.T) {
	t.Parallel()
	broker, one := newBroker(t)
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.record(t, c) })
	wrongURL := testConfig(f)
	wrongURL.BaseURL = "http://127.0.0.1:1"
	wrongURL.MaxBackoff = 50 * time.Millisecond
	two := newBus(t, broker.URL())
	acceptAll(t, one, 1, 30)
	failing := runTrigger(t, one, wrongURL, batchRoute())
	bustest.Eventually(t, func() bool { return failing.Counts()["save-1-of-1"].Retried > 0 }, "the trigger with the wrong URL holds the messages")
	runTrigger(t, two, testConfig(f), batchRoute())
	bustest.Eventually(t, func() bool { return len(l.recorded()) == 30 }, "the other trigger delivers")
	require.Equal(t, numbers(1, 30), l.recorded())
}

func TestOrderSurvivesLateAcknowledgement(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	url, js := broker.URL(), broker.JS()
	var l ledger
	f := newFunction(t, func(_ http.ResponseWriter, c call, _ int) { l.record(t, c) })
	b := newBus(t, url)
	require.NoError(t, b.Ensure(t.Context()))
	acceptAll(t, b, 1, 40)
	route := batchRoute()
	route.AckWait = 30 * time.Second // so NATS redelivers only messages that are returned
	consumer, err := js.CreateConsumer(t.Context(), route.Stream, route.consumer())
	require.NoError(t, err)
	fetched, err := consumer.Fetch(20, jetstream.FetchPriorityGroup(priorityGroup), jetstream.FetchMaxWait(bustest.Soon))
	require.NoError(t, err)
	var elsewhere []jetstream.Msg
	for m := range fetched.Messages() {
		elsewhere = append(elsewhere, m)
	}
	require.Len(t, elsewhere, 20)

	log := &sandbox.LogBuffer{}
	s := broker.Stream(route.Stream)
	require.NoError(t, s.UnpinConsumer(t.Context(), route.Durable, priorityGroup))
	for _, m := range elsewhere[:10] {
		require.NoError(t, m.Nak())
	}
	runTriggerLogging(t, log, newBus(t, url), testConfig(f), route)
	bustest.Eventually(t, func() bool { return strings.Contains(log.String(), "another trigger holds messages") }, "the trigger has the returned messages and waits for the others")
	// This acknowledges the first ten messages, although they were returned.
	_, err = js.Conn().RequestWithContext(t.Context(), elsewhere[9].Reply(), []byte("+ACK"))
	require.NoError(t, err)
	require.Never(t, func() bool { return len(f.allCalls()) > 0 }, 3*othersPoll, bustest.Poll, "the second ten messages are still held by another client")
	for _, m := range elsewhere[10:] {
		require.NoError(t, m.Nak())
	}
	bustest.Eventually(t, func() bool { return isSettled(t, broker, route) }, "settled")
	require.Equal(t, numbers(11, 40), l.recorded(), "the first ten were acknowledged by the other client")
}
