package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func TestFairShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sizes []int64
		total int64
		want  int64
	}{
		{[]int64{10, 20}, 30, math.MaxInt64},
		{[]int64{100}, 40, 40},
		{[]int64{5, 100, 90}, 65, 30},
		{[]int64{1, 1, 1, 1000}, 500, 497},
		{nil, 10, math.MaxInt64},
	} {
		require.Equal(t, c.want, fairShare(c.sizes, c.total), "%v", c)
	}
}

// countOf returns how many messages of a sender in an inbox are not marked for removal.
func (in *userMessages) countOf(sender, subject string) (n int) {
	for _, e := range in.messages {
		if !e.remove && e.pair == in.index[[2]string{sender, subject}] {
			n++
		}
	}
	return n
}

// One sender floods one inbox, or thousands of inboxes. The messages of another sender stay, even in a flooded inbox.
func TestFloodRemovesNoMessageOfOtherSenders(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, inbox := range map[string]func(i int) string{
		"one inbox":     func(int) string { return "inbox.zoe" },
		"10000 inboxes": func(i int) string { return fmt.Sprint("inbox.", i) },
		"bob's inbox":   func(int) string { return "inbox.bob" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := &userMessages{index: map[[2]string]int{}}
			for i := range 10_000 {
				if i%100 == 0 {
					in.add(uint64(2*i+1), now.Add(-2*time.Hour), "ann", "inbox.bob", 1000)
				}
				in.add(uint64(2*i+2), now.Add(-time.Hour), "greedy", inbox(i), 1000)
			}
			in.markForRemoval(in.bytesLeft()/2, now.Add(-15*time.Minute))
			require.Equal(t, 100, in.countOf("ann", "inbox.bob"))
			require.InDelta(t, 5_050_000, in.bytesLeft(), 10_000)
		})
	}
}

// Postgres stores no NUL and no invalid UTF-8. If such a user were recorded, every trim would fail before it makes room.
func TestTrimRecordsNoInvalidUser(t *testing.T) {
	t.Parallel()
	in := &userMessages{index: map[[2]string]int{}}
	for i, token := range []string{"bob", "a=2Eb", "=00", "=FF", "=zz", "a.b"} {
		in.add(uint64(i), time.Now(), "ann", UserPrefix+token, 1)
	}
	require.Equal(t, []string{"bob", "a.b", "", "", "", "a.b"}, in.user)
}

func TestInboxLimitEvictsOldest(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusWithStreams(t, Config{URL: broker.URL(), InboxMessages: 100})
	send := func(user string, n int) {
		t.Helper()
		var messages []Message
		for i := range n {
			messages = append(messages, Message{Subject: UserSubject(user), Event: bustest.Event(fmt.Sprint(user, i, time.Now().UnixNano()))})
		}
		publishAll(t, b, messages...)
	}
	next := func(f *Follower) (FollowedMessage, *GapError) {
		t.Helper()
		m, err := f.Next(bustest.Within(t, bustest.Soon))
		var gap *GapError
		if !errors.As(err, &gap) {
			require.NoError(t, err)
		}
		return m, gap
	}
	follow := func(user string, after uint64, removed uint64) *Follower {
		t.Helper()
		return followTrimmed(t, b, user, &after, func(context.Context) (uint64, error) { return removed, nil })
	}
	send("ann", 1) // 1
	send("bob", 3) // 2 to 4
	send("ann", 250)
	require.EqualValues(t, 103, broker.Info(StreamUsers).State.Msgs, "ann's newest hundred, and all of bob's")

	slow := follow("ann", 1, 0)
	_, gap := next(slow)
	require.Equal(t, &GapError{After: 1, Next: 155}, gap)
	m, gap := next(slow)
	require.Nil(t, gap)
	require.EqualValues(t, 155, m.Seq)
	send("ann", 100)
	_, gap = next(slow)
	require.Equal(t, &GapError{After: 155, Next: 255}, gap, "messages were evicted while it read")
	m, gap = next(slow)
	require.Nil(t, gap)
	require.EqualValues(t, 255, m.Seq)
	behind := follow("ann", 255, 0)
	m, gap = next(behind)
	require.Nil(t, gap)
	require.EqualValues(t, 256, m.Seq)
	send("ann", 30)
	_, gap = next(behind)
	require.Equal(t, &GapError{After: 256, Next: 285}, gap, "also after fewer new messages than an inbox holds")

	_, gap = next(follow("ann", 0, 0))
	require.Equal(t, &GapError{After: 0, Next: 285}, gap, "reading from the beginning returns the gap too")
	m, gap = next(follow("bob", 0, 0))
	require.Nil(t, gap)
	require.EqualValues(t, 2, m.Seq)

	for after, want := range map[uint64]uint64{1: 2, 2: 3, 3: 4} {
		m, gap := next(follow("bob", after, 0))
		require.Nil(t, gap, "other users have no gap")
		require.Equal(t, want, m.Seq)
	}
	_, gap = next(follow("bob", 3, 50))
	require.Nil(t, gap, "the message 4 comes before the gap up to 50")
}

// One sender's messages are removed from the middle of an inbox. Followers that have not read the removed messages
// return one gap, which ends after the last removed message. Other followers return no gap.
func TestFollowReturnsGapInMiddle(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	broker.ChangeStream(StreamUsers, func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 })
	number := 0
	send := func(from, user string, n int) {
		t.Helper()
		var messages []Message
		for range n {
			number++
			e := bustest.Event(fmt.Sprint(number))
			e.SetSource("/sendonce/messages/" + from)
			messages = append(messages, Message{Subject: UserSubject(user), Event: e})
		}
		publishAll(t, b, messages...)
	}
	removedTo := map[string]uint64{} // by user
	follow := func(user string, after *uint64) *Follower {
		t.Helper()
		return followTrimmed(t, b, user, after, func(context.Context) (uint64, error) { return removedTo[user], nil })
	}
	// readAll reads until there is no unread message, and returns the sequence numbers and the gaps.
	readAll := func(f *Follower) (read []uint64, gaps []GapError) {
		t.Helper()
		for end := time.Now().Add(bustest.Soon); ; {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			m, err := f.Next(ctx)
			cancel()
			var gap *GapError
			switch {
			case errors.As(err, &gap):
				gaps = append(gaps, *gap)
			case err != nil:
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.True(t, time.Now().Before(end), "still reading")
				if time.Until(f.checkAfter) > removedValid { // markComplete was called
					return read, gaps
				}
			default:
				read = append(read, m.Seq)
			}
		}
	}
	send("ann", "vic", 1)  // 1
	send("ann", "zoe", 1)  // 2
	send("mal", "vic", 90) // 3 to 92
	send("ann", "vic", 1)  // 93
	send("mal", "wen", 3)  // 94 to 96
	send("ann", "zoe", 1)  // 97
	connected, slow, fromZero := follow("vic", nil), follow("vic", seq(1)), follow("vic", seq(0))
	complete := follow("vic", seq(0))
	read, gaps := readAll(complete)
	require.Len(t, read, 92)
	require.Empty(t, gaps, "nothing is removed yet")
	_, err := slow.Next(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	_, err = fromZero.Next(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)

	removed, err := b.TrimUsers(t.Context(), false, func(_ context.Context, trimmed TrimmedUsers) error {
		removedTo = trimmed.UpTo
		return nil
	})
	require.NoError(t, err)
	require.InDelta(t, 47, removed, 3)
	require.Len(t, removedTo, 1, "messages of the largest inbox only")
	last := removedTo["vic"]
	send("ann", "vic", 1)
	for _, f := range []*Follower{slow, fromZero} {
		f.checkAfter = time.Time{} // as if removedValid had passed: this TrimUsers did not wait for trimNotice, which is longer
	}
	for name, f := range map[string]*Follower{"disconnected": follow("vic", seq(1)), "from the beginning": follow("vic", seq(0)), "disconnected in the middle": follow("vic", seq(10)), "slow": slow, "slow from the beginning": fromZero} {
		read, gaps = readAll(f)
		require.Len(t, gaps, 1, name)
		require.Equal(t, last+1, gaps[0].Next, name)
		require.Less(t, gaps[0].After, last, name)
		require.Contains(t, read, uint64(93), name)
		require.Equal(t, uint64(98), read[len(read)-1], name)
	}
	for name, f := range map[string]*Follower{"connected": connected, "had read all": complete, "had read the removed messages": follow("vic", seq(last))} {
		_, gaps = readAll(f)
		require.Empty(t, gaps, name)
	}
	read, gaps = readAll(follow("zoe", seq(2)))
	require.Equal(t, []uint64{97}, read)
	require.Empty(t, gaps, "no message to her was removed")

	// All messages to a user are removed.
	removedTo["wen"] = 96
	require.NoError(t, broker.Stream(StreamUsers).Purge(t.Context(), jetstream.WithPurgeSubject(UserSubject("wen"))))
	emptied := follow("wen", seq(93))
	_, gaps = readAll(emptied)
	require.Equal(t, []GapError{{After: 93, Next: 97}}, gaps)
	_, gaps = readAll(follow("wen", seq(emptied.After())))
	require.Empty(t, gaps, "the gap is returned once")
	removedTo["xia"] = 5000
	_, gaps = readAll(follow("xia", seq(0)))
	require.Empty(t, gaps, "a sequence number of an earlier stream is ignored")
}

// If the trigger reads slowly, TrimUsers stops reading while there is time to remove messages, also those between messages
// of other senders.
func TestTrimUsersRemovesAfterSlowReading(t *testing.T) {
	t.Parallel()
	broker, _ := newBrokerWithStreams(t)
	b := openBus(t, Config{URL: broker.URL(), Now: func() time.Time { return time.Now().Add(time.Hour) }}, io.Discard)
	messages := []Message{toUser("ann", "0")}
	for n := range 400 {
		messages = append(messages, toUser("vic", fmt.Sprint("v", n)))
	}
	publishAll(t, b, messages...)
	trigger := broker.Conn()
	_, err := trigger.Subscribe(headersPrefix+StreamUsers, func(request *nats.Msg) {
		for n := range messages {
			page, err := json.Marshal(headersPage{Number: n, Messages: []messageHeader{
				{Seq: uint64(n + 1), Subject: messages[n].Subject, Source: messages[n].Subject, Size: 100},
			}})
			if err != nil || request.Respond(page) != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	require.NoError(t, err)
	require.NoError(t, trigger.Flush())
	setFull(t, broker, StreamUsers, true)
	removed, err := b.TrimUsers(t.Context(), true, noNote)
	require.NoError(t, err)
	require.Positive(t, removed)
	require.EqualValues(t, 401-removed, broker.Info(StreamUsers).State.Msgs)
}
