package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// noLimit is a ReadLimit that never blocks.
func noLimit(context.Context) (func(), error) { return func() {}, nil }

func follow(t *testing.T, b *Bus, user string, after *uint64) *Follower {
	t.Helper()
	return followTrimmed(t, b, user, after, nil)
}

// followTrimmed follows a user whose messages were removed up to the result of removedTo.
func followTrimmed(t *testing.T, b *Bus, user string, after *uint64, removedTo func(context.Context) (uint64, error)) *Follower {
	t.Helper()
	f, err := b.Follow(bustest.Within(t, bustest.Soon), user, after, removedTo, noLimit)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

func seq(n uint64) *uint64 { return &n }

func toUser(user, id string) Message {
	e := bustest.Event(id)
	e.SetExtension("sequence", "7")
	if err := e.SetData("application/json", map[string]string{"text": "你好"}); err != nil {
		panic(err)
	}
	return Message{Subject: UserSubject(user), Event: e}
}

// readIDs reads n events and returns their ids.
func readIDs(t *testing.T, f *Follower, n int) (ids []string) {
	t.Helper()
	for range n {
		m, err := f.Next(bustest.Within(t, bustest.Soon))
		require.NoError(t, err)
		require.Equal(t, m.Seq, f.After())
		ids = append(ids, m.Event.ID())
	}
	return ids
}

// requireNothingToRead checks that there is no unread event.
func requireNothingToRead(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := f.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestFollowReadsInOrder(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	old := follow(t, b, "ann", seq(0))
	publishAll(t, b, toUser("ann", "1"), toUser("bob", "2"), toUser("ann.b", "3"))
	fresh := follow(t, b, "ann", nil)
	require.EqualValues(t, 3, fresh.After(), "a follower without events has a position to continue from")
	publishAll(t, b, toUser("ann", "4"))

	m, err := old.Next(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	want := toUser("ann", "1").Event
	require.Equal(t, want.String(), m.Event.String(), "as it was published")
	require.Equal(t, []string{"4"}, readIDs(t, old, 1))
	require.Equal(t, []string{"4"}, readIDs(t, fresh, 1))
	require.Equal(t, []string{"3"}, readIDs(t, follow(t, b, "ann.b", seq(0)), 1))
	require.Equal(t, []string{"4"}, readIDs(t, follow(t, b, "ann", seq(1)), 1), "it continues where another follower ended")
	requireNothingToRead(t, follow(t, b, "ann", seq(4)))
}

// A caller that reads its inbox with many followers delays only itself.
func TestFollowRespectsReadLimit(t *testing.T) {
	t.Parallel()
	const followerCount, events = 10, 20
	_, b := newBrokerWithStreams(t)
	var messages []Message
	for n := range events {
		messages = append(messages, toUser("mallory", fmt.Sprint("m", n)), toUser("ann", fmt.Sprint("a", n)))
	}
	publishAll(t, b, messages...)
	var waiting, reading, mostReading atomic.Int64
	slots := make(chan struct{}, 2)
	limit := func(context.Context) (func(), error) {
		waiting.Add(1)
		slots <- struct{}{}
		waiting.Add(-1)
		mostReading.Store(max(mostReading.Load(), reading.Add(1)))
		return func() { reading.Add(-1); <-slots }, nil
	}
	var followers []*Follower
	for range followerCount {
		f, err := b.Follow(bustest.Within(t, bustest.Soon), "mallory", seq(0), nil, limit)
		require.NoError(t, err)
		t.Cleanup(f.Close)
		followers = append(followers, f)
	}
	slots <- struct{}{}
	slots <- struct{}{} // both slots are in use
	var readers sync.WaitGroup
	for _, f := range followers {
		readers.Go(func() {
			for range events {
				m, err := f.Next(bustest.Within(t, bustest.Soon))
				if err != nil {
					t.Error(err)
					return
				}
				m.Release()
			}
		})
	}
	require.Eventually(t, func() bool { return waiting.Load() == followerCount }, bustest.Soon, time.Millisecond)
	require.Len(t, readIDs(t, follow(t, b, "ann", seq(0)), events), events, "other users do not wait")
	require.EqualValues(t, followerCount, waiting.Load())
	<-slots
	<-slots
	readers.Wait()
	require.LessOrEqual(t, mostReading.Load(), int64(cap(slots)))
	requireNothingToRead(t, followers[0])
	require.Zero(t, reading.Load(), "a waiting follower holds no slot")
}

func TestManyFollowersNeedNoConsumers(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	const users, each = 300, 3
	followers := make([]*Follower, users)
	for u := range users {
		followers[u] = follow(t, b, fmt.Sprint(u), nil)
	}
	got := make([][]string, users)
	var all sync.WaitGroup
	for u, f := range followers {
		all.Go(func() { got[u] = readIDs(t, f, each) })
	}
	for n := range each {
		messages := make([]Message, users)
		for u := range users {
			messages[u] = toUser(fmt.Sprint(u), fmt.Sprintf("%d-%d", u, n))
		}
		publishAll(t, b, messages...)
	}
	all.Wait()
	for u := range users {
		require.Equal(t, []string{fmt.Sprintf("%d-0", u), fmt.Sprintf("%d-1", u), fmt.Sprintf("%d-2", u)}, got[u])
	}
	require.Zero(t, broker.Info(StreamUsers).State.Consumers)
	for _, f := range followers {
		f.Close()
	}
	// The remaining subscriptions are for replies.
	require.LessOrEqual(t, b.nc.NumSubscriptions(), 2)
}

// A user with many followers and large messages must not fill the connection: NATS sends each message only once for all
// followers of its user in a process.
func TestFollowersOfOneUserShareOneSubscription(t *testing.T) {
	t.Parallel()
	const followerCount, size, sent = 50, 60_000, 3
	broker := bustest.NewBroker(t)
	b, sender := newBus(t, broker.URL()), newBusWithStreams(t, Config{URL: broker.URL()})
	awaitSubscriptions := func(user string, n int) {
		t.Helper()
		bustest.Eventually(t, func() bool {
			count, err := broker.Server.Subscriptions(UserSubject(user))
			return err == nil && count == n
		}, fmt.Sprintf("%d for %s", n, user))
	}
	large := func(id string) Message {
		m := toUser("mallory", id)
		require.NoError(t, m.Event.SetData("text/plain", bytes.Repeat([]byte("x"), size)))
		return m
	}
	ann := follow(t, b, "ann", nil)
	followers := make([]*Follower, followerCount)
	for i := range followers {
		followers[i] = follow(t, b, "mallory", nil)
	}
	awaitSubscriptions("mallory", 1)
	awaitSubscriptions("ann", 1)
	received := b.nc.Stats().InBytes
	for n := range sent {
		publishAll(t, sender, large(fmt.Sprint("l", n)))
	}
	require.NoError(t, b.nc.Flush())
	require.Less(t, b.nc.Stats().InBytes-received, uint64((sent+1)*size), "each message is received once, not once for each follower")
	for _, f := range followers {
		bustest.Eventually(t, func() bool { return len(f.wakeUps) == 1 }, "woken")
	}
	require.Empty(t, ann.wakeUps)

	readAll := func(followers []*Follower, n int) {
		t.Helper()
		var all sync.WaitGroup
		for _, f := range followers {
			f.poll = maxPoll // without a wake-up, a second read would come after 15 s
			all.Go(func() {
				for range n {
					if _, err := f.Next(bustest.Within(t, bustest.Soon)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	readAll(followers, sent)
	publishAll(t, sender, toUser("mallory", "woken"), toUser("ann", "1"))
	readAll(followers, 1)
	require.Equal(t, []string{"1"}, readIDs(t, ann, 1))

	for _, f := range followers[2:] {
		f.Close()
		f.Close() // the second time does nothing
	}
	followers = followers[:2]
	publishAll(t, sender, toUser("mallory", "fewer"))
	readAll(followers, 1)
	awaitSubscriptions("mallory", 1)

	connectionOf(b).Close() // permanently: the bus replaces it
	publishAll(t, sender, toUser("mallory", "replaced"), toUser("ann", "2"))
	readAll(followers, 1)
	require.Equal(t, []string{"2"}, readIDs(t, ann, 1))
	awaitSubscriptions("mallory", 1)
	broker.Stop()
	bustest.Eventually(t, func() bool { return !b.Connected() }, "the disconnect is noticed")
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool {
		return errors.Join(sender.Publish(t.Context(), []Message{toUser("mallory", "again")})...) == nil
	}, "published")
	readAll(followers, 1)
	awaitSubscriptions("mallory", 1)

	followers[0].Close()
	awaitSubscriptions("mallory", 1)
	followers[1].Close()
	awaitSubscriptions("mallory", 0)
	awaitSubscriptions("ann", 1)
	require.Len(t, b.inboxes, 1, "no subscription of closed followers is left")
	publishAll(t, sender, toUser("ann", "3"))
	require.Equal(t, []string{"3"}, readIDs(t, ann, 1), "followers of another user still read")
}

func TestIdleFollowerPollsLess(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	f := follow(t, b, "ann", nil)
	nc := broker.Conn()
	requests := make(chan struct{}, 1000)
	_, err := nc.Subscribe("$JS.API.STREAM.MSG.GET."+StreamUsers, func(*nats.Msg) { requests <- struct{}{} })
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = f.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, nc.Flush())
	require.LessOrEqual(t, len(requests), 11, "polls after 1, 2, 4, ... ms")
	require.NotEmpty(t, requests)
	for len(requests) > 0 {
		<-requests
	}
	f.poll = time.Hour
	read := make(chan []string, 1)
	go func() { read <- readIDs(t, f, 1) }()
	bustest.Eventually(t, func() bool { return len(requests) > 0 }, "Next has found nothing, and waits")
	publishAll(t, b, toUser("ann", "1"))
	select {
	case ids := <-read:
		require.Equal(t, []string{"1"}, ids)
	case <-time.After(bustest.Soon):
		require.Fail(t, "a wake-up ends the poll interval")
	}
}

func TestFollowSurvivesRestart(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	sender := newBus(t, broker.URL())
	f := follow(t, b, "ann", nil)
	publishAll(t, b, toUser("ann", "1"), toUser("ann", "2"))
	require.Equal(t, []string{"1"}, readIDs(t, f, 1))
	broker.Stop()
	bustest.Eventually(t, func() bool { return !b.Connected() }, "the disconnect is noticed")
	requireNothingToRead(t, f)
	_, err := b.Follow(t.Context(), "ann", nil, nil, noLimit)
	require.ErrorIs(t, err, ErrUnavailable)

	read := make(chan []string, 1)
	go func() { read <- readIDs(t, f, 3) }()
	broker.Start(broker.Dir)
	for _, id := range []string{"3", "4"} {
		bustest.Eventually(t, func() bool { return errors.Join(sender.Publish(t.Context(), []Message{toUser("ann", id)})...) == nil }, "published")
	}
	require.Equal(t, []string{"2", "3", "4"}, <-read)
}

func TestFollowReturnsGapOnce(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	f := follow(t, b, "ann", seq(0))
	publishAll(t, b, toUser("ann", "1"), toUser("ann", "2"), toUser("ann", "3"))
	require.Equal(t, []string{"1"}, readIDs(t, f, 1))
	stream := broker.Stream(StreamUsers)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(3)))

	late := follow(t, b, "ann", seq(1))
	require.EqualValues(t, 1, late.After(), "before the gap: another follower from here returns the gap, too")
	_, err := late.Next(bustest.Within(t, bustest.Soon))
	var gap *GapError
	require.ErrorAs(t, err, &gap)
	require.EqualValues(t, 2, late.After(), "after the gap: another follower from here does not return the gap again")
	require.Equal(t, &GapError{After: 1, Next: 3}, gap)
	require.EqualError(t, err, "messages after 1 and before 3 may be missing")
	require.Equal(t, []string{"3"}, readIDs(t, late, 1))
	require.Equal(t, []string{"3"}, readIDs(t, follow(t, b, "ann", seq(0)), 1), "a follower from 0 begins with the oldest message, without a gap")
	require.Equal(t, []string{"3"}, readIDs(t, f, 1))

	// The server is restarted without its data.
	broker.Stop()
	broker.Start(t.TempDir())
	newBusWithStreams(t, Config{URL: broker.URL()})
	_, err = late.Next(bustest.Within(t, bustest.Soon))
	require.ErrorAs(t, err, &gap)
	require.Equal(t, &GapError{After: 3, Next: 1}, gap)
	require.EqualError(t, err, "the stream was created again or has lost its end: it was read up to 3, and is now read from 1 on")
	publishAll(t, b, toUser("ann", "4"))
	require.Equal(t, []string{"4"}, readIDs(t, late, 1))
}

// A connected follower that reads nothing meanwhile does not see that the stream was deleted. The new stream already has
// messages after the position of the follower.
func TestFollowNoticesThatStreamWasCreatedAgain(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	f := follow(t, b, "ann", seq(0))
	publishAll(t, b, toUser("ann", "1"), toUser("ann", "2"))
	require.Equal(t, []string{"1", "2"}, readIDs(t, f, 2))
	require.NoError(t, broker.JS().DeleteStream(t.Context(), StreamUsers))
	require.NoError(t, b.Ensure(t.Context()))
	publishAll(t, b, toUser("ann", "3"), toUser("bob", "4"), toUser("bob", "5"), toUser("bob", "6"))

	_, err := f.Next(bustest.Within(t, bustest.Soon))
	var gap *GapError
	require.ErrorAs(t, err, &gap)
	require.Equal(t, &GapError{After: 2, Next: 1}, gap)
	require.Equal(t, []string{"3"}, readIDs(t, f, 1))
}

func TestFollowSkipsInvalidMessages(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	log := &sandbox.LogBuffer{}
	b := openBus(t, Config{URL: broker.URL()}, log)
	require.NoError(t, b.Ensure(t.Context()))
	f := follow(t, b, "ann", nil)
	nc := broker.Conn()
	for _, header := range []nats.Header{nil, {"ce-id": {"1"}}, {"ce-specversion": {"1.0"}, "ce-id": {"1"}}} {
		_, err := nc.RequestMsg(&nats.Msg{Subject: UserSubject("ann"), Header: header, Data: []byte("hello")}, bustest.Soon)
		require.NoError(t, err)
	}
	publishAll(t, b, toUser("ann", "4"))
	require.Equal(t, []string{"4"}, readIDs(t, f, 1))
	b.Close()
	require.Equal(t, 3, strings.Count(log.String(), "skipped a message that is not an event"), log.String())
}

func TestCloseOfBusEndsFollowers(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	f := follow(t, b, "ann", nil)
	ended := make(chan error, 1)
	go func() {
		_, err := f.Next(context.WithoutCancel(t.Context()))
		ended <- err
	}()
	b.Close()
	require.ErrorIs(t, <-ended, ErrNotConnected)
}
