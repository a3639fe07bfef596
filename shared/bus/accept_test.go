package bus

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// testSender is the sender of all messages that the tests accept.
const testSender = "shop"

func acceptance(t *testing.T, id, text string) Acceptance {
	t.Helper()
	return Acceptance{Subject: AcceptSubject(testSender, id), Fingerprint: "print of " + text, Event: bustest.AcceptedEvent(t, id, text)}
}

func accept(t *testing.T, b *Bus, id, text string) Accepted {
	t.Helper()
	accepted, err := b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, id, text))
	require.NoError(t, err)
	return accepted
}

func acceptAll(t *testing.T, b *Bus, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		accept(t, b, strconv.Itoa(i), "x")
	}
}

func lookUp(t *testing.T, b *Bus, id string) *AcceptedMessage {
	t.Helper()
	m, err := b.LookUp(bustest.Within(t, bustest.Soon), id)
	require.NoError(t, err)
	return m
}

func TestAcceptReturnsFirstMessageOnRepeat(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	acceptAll(t, b, 1, 2)
	first := acceptance(t, "a", "hello")
	accepted, err := b.Accept(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, Accepted{Seq: 3, Fingerprint: "print of hello"}, accepted)

	requireReplayed := func(b *Bus) {
		t.Helper()
		again := accept(t, b, "a", "another text")
		require.Equal(t, Accepted{Seq: 3, Replayed: true, Fingerprint: "print of hello", Event: again.Event}, again)
		require.Equal(t, first.Event.Context, again.Event.Context)
		require.JSONEq(t, `{"text":"hello"}`, string(again.Event.Data()))
		found := lookUp(t, b, "a")
		require.Equal(t, *again.Event, found.Event)
		require.Equal(t, "print of hello", found.Fingerprint)
		require.EqualValues(t, 3, found.Seq)
		require.WithinDuration(t, time.Now(), found.At, time.Minute)
	}
	requireReplayed(b)
	broker.Stop()
	_, err = b.Accept(bustest.Within(t, bustest.Soon), first)
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = b.LookUp(bustest.Within(t, bustest.Soon), "a")
	require.ErrorIs(t, err, ErrUnavailable)
	broker.Start(broker.Dir)
	requireReplayed(newBus(t, broker.URL()))
	require.EqualValues(t, 3, broker.Info(StreamAccepted).State.Msgs)
}

func TestLookUpOfUnknownID(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	acceptAll(t, b, 1, 1)
	require.Nil(t, lookUp(t, b, "2"))
	_, err := b.LookUp(t.Context(), "*")
	require.ErrorIs(t, err, ErrRefused)

	require.NoError(t, broker.JS().DeleteStream(t.Context(), StreamAccepted))
	_, err = b.LookUp(t.Context(), "1")
	require.ErrorIs(t, err, ErrUnavailable, "it is unknown what a removed stream contained")
}

func TestAcceptOnFullStream(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, js := newBus(t, broker.URL()), broker.JS()
	small := streamConfigs(&Config{Replicas: 1}, true)[1]
	require.Equal(t, StreamAccepted, small.Name)
	small.MaxBytes = 4096
	_, err := js.CreateStream(t.Context(), small)
	require.NoError(t, err)
	accepted := 0
	for ; err == nil; accepted++ {
		_, err = b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, strconv.Itoa(accepted+1), strings.Repeat("x", 200)))
	}
	accepted--
	require.ErrorIs(t, err, ErrUnavailable)
	require.NotErrorIs(t, err, ErrRefused)
	require.Positive(t, accepted)
	require.EqualValues(t, accepted, broker.Info(StreamAccepted).State.Msgs)
	require.Nil(t, lookUp(t, b, strconv.Itoa(accepted+1)))
	require.True(t, accept(t, b, "1", strings.Repeat("x", 200)).Replayed, "a full stream still detects repeats")

	require.NoError(t, b.Forget(t.Context(), entries(1)))
	accept(t, b, "new", "x")
}

func TestConcurrentAcceptsStoreOneMessage(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	raceToAccept(t, b, 20)
	require.EqualValues(t, 20, broker.Info(StreamAccepted).State.Msgs)
}

// raceToAccept makes 24 concurrent calls with the same id, each with its own fingerprint, and checks that one stores its
// message and all return this message. Each round has its own id.
func raceToAccept(t *testing.T, b *Bus, rounds int) {
	t.Helper()
	for round := range rounds {
		var callers sync.WaitGroup
		var stored atomic.Int64
		prints, seqs := make([]string, 24), make([]uint64, 24)
		winner := ""
		for i := range 24 {
			callers.Go(func() {
				own := fmt.Sprintf("caller %d", i)
				a, err := b.Accept(t.Context(), acceptance(t, "r"+strconv.Itoa(round), own))
				if err != nil {
					t.Error(err)
					return
				}
				if !a.Replayed {
					stored.Add(1)
					winner = "print of " + own
				}
				prints[i], seqs[i] = a.Fingerprint, a.Seq
			})
		}
		callers.Wait()
		require.EqualValues(t, 1, stored.Load())
		for i := range 24 {
			require.Equal(t, winner, prints[i])
			require.Equal(t, seqs[0], seqs[i])
		}
	}
}

func TestAcceptRefusesInvalidMessages(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	for name, a := range map[string]Acceptance{
		"too large":         acceptance(t, "1", strings.Repeat("x", 2*mib)),
		"an empty event":    {Subject: AcceptSubject(testSender, "1"), Event: cloudevents.NewEvent()},
		"a wildcard":        {Subject: "acc.0.*", Event: bustest.Event("1")},
		"another subject":   {Subject: "msg.1", Event: bustest.Event("1")},
		"an id with blanks": {Subject: AcceptSubject(testSender, "a b"), Event: bustest.Event("1")},
	} {
		_, err := b.Accept(t.Context(), a)
		require.ErrorIs(t, err, ErrRefused, name)
	}
	require.Nil(t, lookUp(t, b, "1"))
}

func TestAcceptTimesOut(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, nc := newBus(t, broker.URL()), broker.Conn()
	_, err := nc.Subscribe("acc.>", func(*nats.Msg) {}) // a subscriber that does not reply
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	began := time.Now()
	_, err = b.Accept(t.Context(), acceptance(t, "1", "x"))
	require.ErrorIs(t, err, ErrUnavailable)
	require.InDelta(t, acceptTimeout.Seconds(), time.Since(began).Seconds(), 1)
}

func TestForgetRemovesAcceptedMessages(t *testing.T) {
	t.Parallel()
	broker, log := bustest.NewBroker(t), &sandbox.LogBuffer{}
	b := openBus(t, Config{URL: broker.URL()}, log)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	acceptAll(t, b, 1, 7)
	_, err := broker.JS().Publish(t.Context(), "acc.0.junk", []byte("no event"))
	require.NoError(t, err)
	require.NoError(t, b.Forget(t.Context(), entries(2, 3, 7, 99)))
	require.NoError(t, b.Forget(t.Context(), entries(2)), "a second Forget is no error")
	found, err := b.AcceptedAt(t.Context(), []uint64{1, 2, 6, 7, 8, 8, 8, 99})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log.String(), "is not an event"), "a compromised function may have written thousands: one line a minute")
	require.Len(t, found, 2, "without removed messages and without messages that are not events")
	for i, id := range []string{"1", "6"} {
		require.Equal(t, id, found[i].Event.ID())
		require.Equal(t, id, strconv.FormatUint(found[i].Seq, 10))
		require.Equal(t, "print of x", found[i].Fingerprint)
		require.WithinDuration(t, time.Now(), found[i].At, time.Minute)
	}
	require.Nil(t, lookUp(t, b, "2"))
	require.Equal(t, Accepted{Seq: 9, Fingerprint: "print of x"}, accept(t, b, "2", "x"), "after Forget the id is accepted again")

	broker.Stop()
	_, err = b.AcceptedAt(t.Context(), []uint64{1})
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestAcceptStateCountsPending(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	stateNow := func() AcceptState {
		state, err := b.AcceptState(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), state.Created, time.Minute)
		state.Created = time.Time{}
		return state
	}
	require.Equal(t, AcceptState{MaxBytes: 256 * mib, Pending: map[string]uint64{}}, stateNow())

	acceptAll(t, b, 1, 5)
	require.Zero(t, stateNow().SavedTo, "without consumers")
	consumer := func(shards int) jetstream.Consumer {
		c, err := broker.JS().CreateConsumer(t.Context(), StreamAccepted, jetstream.ConsumerConfig{
			Durable: ShardDurable("save", 0, shards), FilterSubjects: AcceptFilters(0, shards), AckPolicy: jetstream.AckAllPolicy,
		})
		require.NoError(t, err)
		return c
	}
	c := consumer(1)
	consumer(2)
	batch, err := c.Fetch(3)
	require.NoError(t, err)
	var fetched []jetstream.Msg
	for m := range batch.Messages() {
		fetched = append(fetched, m)
	}
	require.Len(t, fetched, 3)
	require.NoError(t, fetched[1].DoubleAck(t.Context()))
	require.NoError(t, fetched[2].Nak())
	state := stateNow()
	require.Equal(t, map[string]uint64{"save-1-of-1": 3}, state.Pending, "two are not delivered and one is nacked; consumers of another number of shards do not count")
	require.EqualValues(t, 2, state.SavedTo, "an acknowledgement covers earlier messages")
	require.EqualValues(t, 5, state.Messages)
	require.EqualValues(t, 5, state.LastSeq)
	require.Positive(t, state.Bytes)

	fetchAndAck(t, c, 3)
	bustest.Eventually(t, func() bool { return stateNow().Pending["save-1-of-1"] == 0 }, "all acknowledged")
	require.EqualValues(t, 5, stateNow().SavedTo)
	require.EqualValues(t, 5, stateNow().Messages, "saved messages stay, to detect repeats")
}

func TestShardsAreStable(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0, ShardOf("anybody", 1))
	require.Equal(t, 0, ShardOf("anybody", 0))
	require.Equal(t, int(3826002220%64%8), ShardOf("a", 8)) // FNV-1a of "a" is e40c292c
	used := map[int]bool{}
	for i := range 1000 {
		used[ShardOf(strconv.Itoa(i), 64)] = true
	}
	require.Len(t, used, 64)
	require.Equal(t, "acc.44.id", AcceptSubject("a", "id"))
	for _, shards := range []int{1, 2, 3, 64} {
		filters := map[string]int{}
		for shard := range shards {
			for _, filter := range AcceptFilters(shard, shards) {
				filters[filter]++
			}
		}
		if shards == 1 {
			require.Equal(t, map[string]int{"acc.>": 1}, filters)
			continue
		}
		require.Len(t, filters, 64, "each slot is in one of %d shards", shards)
		require.Contains(t, AcceptFilters(ShardOf("a", shards), shards), "acc.44.>")
	}
}

// With servers before 2.12 every function could delete accepted messages that are not saved.
func TestAcceptRefusesOldServer(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	accept(t, b, "a", "x")
	conn, err := b.connection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	conn.isStrict = strictRequests.isReachedBy("2.11.9")
	_, err = b.Accept(bustest.Within(t, bustest.Soon), acceptance(t, "b", "x"))
	require.ErrorIs(t, err, ErrOldServer)
	require.ErrorIs(t, err, ErrUnavailable, "the caller may save the message at once")
	level, err := b.Durability(bustest.Within(t, bustest.Soon), "")
	require.ErrorIs(t, err, ErrOldServer)
	require.Zero(t, level)
	require.NotNil(t, lookUp(t, b, "a"), "accepted messages are still found")
}

func TestAcceptUsesConfiguredStream(t *testing.T) {
	t.Parallel()
	b := newBusWithStreams(t, Config{URL: bustest.NewBroker(t).URL(), AcceptStream: "OTHER"})
	acceptAll(t, b, 1, 1)
	require.True(t, accept(t, b, "1", "x").Replayed)
	state, err := b.AcceptState(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, state.Messages)
}

// entries returns entries whose ids are their sequence numbers.
func entries(seqs ...uint64) (all []AcceptedEntry) {
	for _, seq := range seqs {
		all = append(all, AcceptedEntry{ID: strconv.FormatUint(seq, 10), Seq: seq})
	}
	return all
}
