package bus

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// recordAll acknowledges all events, as the trigger does once deliver has recorded them.
func recordAll(t *testing.T, broker *bustest.Broker) {
	t.Helper()
	c, err := broker.JS().CreateConsumer(t.Context(), StreamEvents, jetstream.ConsumerConfig{Durable: RecordDurable, AckPolicy: jetstream.AckAllPolicy})
	require.NoError(t, err)
	fetchAndAck(t, c, int(c.CachedInfo().NumPending))
}

func TestRelayReadsHowManyEventsAreRecorded(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	relay := g.bus("relay")
	recorded := func() Recorded {
		r, err := relay.Recorded(bustest.Within(t, bustest.Soon))
		require.NoError(t, err)
		return r
	}
	require.Zero(t, recorded(), "without RecordDurable")
	recordAll(t, g.Broker)
	require.Equal(t, Recorded{Progress: 2}, recorded(), "received up to 1 and acknowledged up to 1")
	publishAll(t, relay, eventMessage("1"), eventMessage("2"))
	bustest.Eventually(t, func() bool { return recorded() == Recorded{Progress: 2, Waiting: 2} }, "two events wait")
}

func TestTrimEventsKeepsYoungAndUnrecordedEvents(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	trim := func(why string) {
		t.Helper()
		_, err := b.TrimEvents(t.Context())
		require.NoError(t, err, why)
	}
	trim("without the stream")
	require.NoError(t, b.Ensure(t.Context()))
	publishAll(t, b, eventMessage("1"), eventMessage("2"), eventMessage("3"))
	trim("without RecordDurable")
	require.EqualValues(t, 3, broker.Info(StreamEvents).State.Msgs)

	recordAll(t, broker)
	trim("young events")
	require.EqualValues(t, 3, broker.Info(StreamEvents).State.Msgs, "young events stay")

	stream := broker.Stream(StreamEvents)
	require.NoError(t, stream.DeleteMsg(t.Context(), 2))
	third, err := stream.GetMsg(t.Context(), 3)
	require.NoError(t, err)
	old, err := lastOlderThan(t.Context(), stream, 1, 3, third.Time)
	require.NoError(t, err)
	require.EqualValues(t, 2, old, "a deleted message counts as old")
	old, err = lastOlderThan(t.Context(), stream, 1, 3, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 3, old)
}

// One caller may fill the stream within a minute. The events of other callers do not wait until these events are old.
func TestTrimOfFullStreamRemovesAllRecordedEvents(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusWithStreams(t, Config{URL: broker.URL(), EventsMB: 1})
	large := func(id string) Message {
		e := bustest.Event(id)
		require.NoError(t, e.SetData("text/plain", strings.Repeat("x", 100_000)))
		return Message{Subject: "evt.task.succeeded", MsgID: id, Event: e}
	}
	for i := range 10 {
		publishAll(t, b, large(strconv.Itoa(i)))
	}
	require.ErrorIs(t, b.Publish(bustest.Within(t, bustest.Soon), []Message{large("neighbour")})[0], ErrUnavailable, "it is full")
	_, err := b.TrimEvents(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, broker.Info(StreamEvents).State.Msgs, "unrecorded events stay")

	recordAll(t, broker)
	removed, err := b.TrimEvents(t.Context())
	require.NoError(t, err)
	require.Equal(t, 10, removed)
	publishAll(t, b, large("neighbour"), large("3"))
	require.EqualValues(t, 1, broker.Info(StreamEvents).State.Msgs, "a repeat of a removed event is detected")
}

// newBusInAnHour returns a Bus whose clock is 61 minutes ahead. Another Bus replies to its requests for headers.
func newBusInAnHour(t *testing.T, url string) *Bus {
	t.Helper()
	b := newBusWithStreams(t, Config{URL: url, TrimNotice: time.Nanosecond, Now: func() time.Time { return time.Now().Add(time.Hour + time.Minute) }})
	serveHeaders(t, newBus(t, url), b)
	return b
}

// reliableMessage returns a message as the relay publishes it.
func reliableMessage(id, subject string) Message {
	e := bustest.Event(id)
	e.SetSource(messageSourcePrefix + "shop")
	return Message{Subject: subject, MsgID: id + ".1.1", Event: e}
}

// statesOf returns these states by id; other messages are Unfinished.
func statesOf(states map[string]MessageState) func(context.Context, []string) (map[string]MessageState, error) {
	return func(context.Context, []string) (map[string]MessageState, error) { return states, nil }
}

// storedIDs returns the event ids of the messages in MESSAGES.
func storedIDs(t *testing.T, broker *bustest.Broker) (ids []string) {
	t.Helper()
	s := broker.Stream(StreamMessages)
	for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
		if m, err := s.GetMsg(t.Context(), seq); err == nil {
			ids = append(ids, m.Header.Get("ce-id"))
		}
	}
	return ids
}

func TestTrimMessagesKeepsUnfinishedAndYoungMessages(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	trim := func(states map[string]MessageState) TrimResult {
		t.Helper()
		trimmed, err := b.TrimMessages(t.Context(), 0, false, statesOf(states))
		require.NoError(t, err)
		return trimmed
	}
	require.Zero(t, trim(nil), "the stream is empty")
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		publishAll(t, b, reliableMessage(id, "msg.a."+id))
	}
	publishAll(t, b, Message{Subject: "msg.a.foreign", Event: bustest.Event("foreign")})
	publishAll(t, b, reliableMessage("7", "msg.a.7"))
	all := map[string]MessageState{"1": Finished, "2": Finished, "4": Finished, "6": Finished, "7": Finished, "foreign": Finished}

	rightClock := newBus(t, broker.URL())
	setFull(t, broker, StreamMessages, true)
	trimmed, err := rightClock.TrimMessages(t.Context(), 0, true, statesOf(all))
	require.NoError(t, err)
	require.Zero(t, trimmed, "young messages stay even in a full stream")
	setFull(t, broker, StreamMessages, false)

	require.Equal(t, TrimResult{Removed: 5}, trim(all))
	require.Equal(t, []string{"3", "5", "foreign"}, storedIDs(t, broker), "unfinished and foreign messages stay, and finished messages after them are removed")
	require.Zero(t, trim(all).Removed)
	require.Equal(t, TrimResult{Removed: 2}, trim(map[string]MessageState{"3": Finished, "5": Finished}))
	require.EqualValues(t, 1, broker.Info(StreamMessages).State.Msgs)
	bustest.Eventually(t, func() bool { return broker.Info(StreamMessages).State.Consumers == 0 }, "the consumer that read the headers is deleted")
}

func TestTrimMessagesWaitsForConsumers(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	stream := broker.Stream(StreamMessages)
	trim := func(full bool, states map[string]MessageState) TrimResult {
		t.Helper()
		setFull(t, broker, StreamMessages, full)
		defer setFull(t, broker, StreamMessages, false)
		trimmed, err := b.TrimMessages(t.Context(), 0, true, statesOf(states))
		require.NoError(t, err)
		return trimmed
	}
	publishAll(t, b, reliableMessage("0", "msg.a.x"))
	require.Zero(t, trim(false, map[string]MessageState{"0": Sent}), "its receivers may create their consumers later, and a stream with room has refused messages for another reason")
	require.Equal(t, TrimResult{Removed: 1}, trim(true, map[string]MessageState{"0": Sent}), "a full stream does not wait for receivers without consumers")

	reader, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "reader", FilterSubject: "msg.a.>", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "elsewhere", FilterSubject: "msg.z.>"})
	require.NoError(t, err)
	publishAll(t, b, reliableMessage("1", "msg.a.x"), reliableMessage("2", "msg.a.x"), reliableMessage("3", "msg.b.x"))
	bustest.Eventually(t, func() bool {
		info, err := reader.Info(t.Context())
		return err == nil && info.NumPending == 2
	}, "both messages are pending for the consumer")
	states := map[string]MessageState{"1": Sent, "2": Sent, "3": Finished}
	require.Equal(t, TrimResult{Removed: 1, HeldBy: "reader"}, trim(true, states), "a confirmed message waits for no consumer")
	fetchAndAck(t, reader, 1)
	require.Equal(t, TrimResult{Removed: 1, HeldBy: "reader"}, trim(true, states))
	require.Equal(t, []string{"2"}, storedIDs(t, broker))
	fetchAndAck(t, reader, 1)
	require.Equal(t, TrimResult{Removed: 1}, trim(true, states))
}

// resent returns a message as the relay publishes it for the send with this number.
func resent(id, subject string, send int) Message {
	m := reliableMessage(id, subject)
	m.MsgID = fmt.Sprintf("%s.abcd.1.%d", id, send)
	return m
}

// No receiver confirms the messages of one sender, so each message is sent again and again, until the stream is full. The
// next trim makes room, and a consumer that is behind still receives one copy of each message.
func TestTrimMessagesKeepsNewestCopy(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusWithStreams(t, Config{URL: broker.URL(), MessagesMB: 1}) // with the right time: young copies are removed too
	serveHeaders(t, newBus(t, broker.URL()), b)
	stream := broker.Stream(StreamMessages)
	behind, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "behind", FilterSubject: "msg.a.>", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	large := func(m Message) Message {
		require.NoError(t, m.Event.SetData("text/plain", strings.Repeat(m.Event.ID(), 85_000)))
		return m
	}
	otherSubject, otherContent := resent("1", "msg.b.x", 0), resent("1", "msg.a.x", 1)
	otherContent.MsgID = "1.ffff.1.1"
	publishAll(t, b, resent("n", "msg.b.x", 1), otherSubject, Message{Subject: "msg.a.x", MsgID: "1.abcd.0.1", Event: bustest.Event("1")}, otherContent)
	for send := range 6 {
		publishAll(t, b, large(resent("1", "msg.a.x", send+1)), large(resent("2", "msg.a.x", send+1)))
	}
	neighbour := large(resent("3", "msg.b.x", 1))
	require.ErrorIs(t, b.Publish(bustest.Within(t, bustest.Soon), []Message{neighbour})[0], ErrUnavailable, "it is full")

	trim := func(b *Bus, full bool, states map[string]MessageState) int {
		t.Helper()
		trimmed, err := b.TrimMessages(t.Context(), 0, full, statesOf(states))
		require.NoError(t, err)
		require.Zero(t, trimmed.Next)
		return trimmed.Removed
	}
	require.Equal(t, 10, trim(b, true, nil))
	publishAll(t, b, neighbour)
	require.Equal(t, []string{"n", "1", "1", "1", "1", "2", "3"}, storedIDs(t, broker), "a message with another subject, source or content is not a copy")
	require.Zero(t, trim(b, true, nil), "the newest copies stay")

	var read []string
	for _, m := range fetchAndAck(t, behind, 4) {
		read = append(read, m.Headers().Get("Nats-Msg-Id"))
	}
	require.Equal(t, []string{"1.abcd.0.1", "1.ffff.1.1", "1.abcd.1.6", "2.abcd.1.6"}, read)

	publishAll(t, b, resent("n", "msg.b.x", 2))
	require.Zero(t, trim(b, false, nil), "copies stay in a stream that is not half full")
	later := newBusInAnHour(t, broker.URL())
	require.Equal(t, 2, trim(later, true, map[string]MessageState{"n": Finished}), "all copies of a finished message are removed")
}

func TestTrimMessagesBeginsAtSequenceNumber(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	const n = 2*headersFetch + 500
	states := map[string]MessageState{}
	var messages []Message
	for i := range n {
		id := strconv.Itoa(i + 1)
		messages = append(messages, reliableMessage(id, "msg.a.x"))
		if i%5 != 0 {
			states[id] = Finished
		}
	}
	publishAll(t, b, messages...)
	trim := func(from uint64) (removed int) { // a slow machine may need more than one call
		t.Helper()
		for {
			trimmed, err := b.TrimMessages(t.Context(), from, false, statesOf(states))
			require.NoError(t, err)
			removed += trimmed.Removed
			if from = trimmed.Next; from == 0 {
				return removed
			}
		}
	}
	require.Equal(t, headersFetch*4/5+1, trim(n-headersFetch), "starting at a sequence number")
	require.Equal(t, n*4/5-headersFetch*4/5-1, trim(10*n), "a sequence number after the end means the beginning")
	require.EqualValues(t, n/5, broker.Info(StreamMessages).State.Msgs)
}

// setFull limits a stream to its present size (full), or to three times this size (not full).
func setFull(t *testing.T, broker *bustest.Broker, stream string, full bool) {
	t.Helper()
	size := int64(broker.Info(stream).State.Bytes)
	if !full {
		size *= 3
	}
	broker.ChangeStream(stream, func(c *jetstream.StreamConfig) { c.MaxBytes = size })
}

func noNote(context.Context, TrimmedUsers) error { return nil }

func TestTrimUsersKeepsNewestHalf(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	limit := func(n int64) { broker.ChangeStream(StreamUsers, func(c *jetstream.StreamConfig) { c.MaxMsgs = n }) }
	trim := func() int {
		t.Helper()
		removed, err := b.TrimUsers(t.Context(), true, noNote)
		require.NoError(t, err)
		return removed
	}
	var messages []Message
	for i := range 100 {
		messages = append(messages, Message{Subject: UserSubject("bob"), Event: bustest.Event(strconv.Itoa(i))})
	}
	publishAll(t, b, messages...)
	require.Zero(t, trim(), "less than half is used: the stream refused messages for another reason")
	limit(150)
	require.Zero(t, trim(), "more than half is used, but all messages are of the last day")
	limit(100)
	require.InDelta(t, 50, trim(), 1, "half of a full stream is removed")
	require.Zero(t, trim())
	require.InDelta(t, 50, broker.Info(StreamUsers).State.Msgs, 1, "the newest half stays")

	rightClock := newBus(t, broker.URL())
	limit(50)
	removed, err := rightClock.TrimUsers(t.Context(), true, noNote)
	require.NoError(t, err)
	require.Zero(t, removed, "the messages of the last 15 minutes stay even in a full stream")
	require.NotZero(t, trim())
}
