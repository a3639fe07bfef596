package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShare(t *testing.T) {
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
		require.Equal(t, c.want, share(c.sizes, c.total), "%v", c)
	}
}

func (in *inboxes) of(sender, subject string) (n int) {
	for _, e := range in.entries {
		if !e.remove && e.inbox == in.number[[2]string{sender, subject}] {
			n++
		}
	}
	return n
}

// One sender floods an inbox, or thousands of them. The inboxes of others keep all.
func TestAFloodShortensNoInboxOfOthers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, inbox := range map[string]func(i int) string{
		"one inbox":     func(int) string { return "inbox.zoe" },
		"10000 inboxes": func(i int) string { return fmt.Sprint("inbox.", i) },
		"bob's inbox":   func(int) string { return "inbox.bob" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := &inboxes{number: map[[2]string]int{}}
			for i := range 10_000 {
				if i%100 == 0 {
					in.add(uint64(2*i+1), now.Add(-2*time.Hour), "ann", "inbox.bob", 1000)
				}
				in.add(uint64(2*i+2), now.Add(-time.Hour), "greedy", inbox(i), 1000)
			}
			in.mark(in.left()/2, now.Add(-15*time.Minute))
			require.Equal(t, 100, in.of("ann", "inbox.bob"))
			require.InDelta(t, 5_050_000, in.left(), 10_000)
			young := &inboxes{number: map[[2]string]int{}}
			young.add(1, now, "greedy", "inbox.bob", 1000)
			young.mark(10, now.Add(-15*time.Minute))
			require.Equal(t, 1, young.of("greedy", "inbox.bob"))
		})
	}
}

func TestAnInboxIsBoundedForItself(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	b := newBus(t, broker.server.URL())
	b.cfg.InboxMessages = 100
	require.NoError(t, b.Ensure(t.Context()))
	send := func(user string, n int) {
		t.Helper()
		var messages []Message
		for i := range n {
			messages = append(messages, Message{Subject: UserSubject(user), Event: newEvent(fmt.Sprint(user, i, time.Now().UnixNano()))})
		}
		publishAll(t, b, messages...)
	}
	next := func(f *Follower) (FollowedMessage, *GapError) {
		t.Helper()
		m, err := f.Next(within(t, soon))
		var gap *GapError
		if !errors.As(err, &gap) {
			require.NoError(t, err)
		}
		return m, gap
	}
	follow := func(user string, after uint64, removed uint64) *Follower {
		t.Helper()
		f, err := b.Follow(within(t, soon), user, &after, func(context.Context) (uint64, error) { return removed, nil }, freely)
		require.NoError(t, err)
		t.Cleanup(f.Close)
		return f
	}
	send("ann", 1) // 1
	send("bob", 3) // 2 to 4
	send("ann", 250)
	require.EqualValues(t, 103, broker.info(broker.js(), StreamUsers).State.Msgs, "ann's newest hundred, and all of bob's")

	slow := follow("ann", 1, 0)
	_, gap := next(slow)
	require.Equal(t, &GapError{After: 1, Next: 155}, gap)
	m, gap := next(slow)
	require.Nil(t, gap)
	require.EqualValues(t, 155, m.Seq)
	send("ann", 100)
	_, gap = next(slow)
	require.Equal(t, &GapError{After: 154, Next: 255}, gap, "it was overtaken while it read")

	_, gap = next(follow("ann", 0, 0))
	require.Equal(t, &GapError{After: 0, Next: 255}, gap, "who reads from the beginning is told too")
	m, gap = next(follow("bob", 0, 0))
	require.Nil(t, gap)
	require.EqualValues(t, 2, m.Seq)

	for after, want := range map[uint64]uint64{1: 2, 2: 3, 3: 4} {
		m, gap := next(follow("bob", after, 0))
		require.Nil(t, gap, "others miss nothing")
		require.Equal(t, want, m.Seq)
	}
	send("carl", 1)
	_, gap = next(follow("carl", 1, 50))
	require.Equal(t, &GapError{After: 1, Next: 355}, gap, "something was removed, nobody knows whose")
	m, gap = next(follow("bob", 2, 50))
	require.Nil(t, gap, "what it has seen is there, so what came behind it is too")
	require.EqualValues(t, 3, m.Seq)
}
