package bus

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func TestStreamUsageIsShareOfSizeLimit(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	const size = 100_000
	for _, subject := range []string{"inbox.zoe", "dlq.x"} {
		_, err := g.JS().PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: bytes.Repeat([]byte("x"), size)})
		require.NoError(t, err)
	}
	for _, user := range []string{"deliver", UserTrigger, UserAll} {
		used, err := g.bus(user).StreamUsage(bustest.Within(t, bustest.Soon))
		require.NoError(t, err, user)
		require.Equal(t, []string{"ACCEPTED", "DEADLETTERS", "EVENTS", "MESSAGES", "USERS"}, slices.Sorted(maps.Keys(used)))
		require.InDelta(t, float64(size)/(128*mib), used[StreamUsers], 1e-5)
		require.InDelta(t, float64(size)/(32*mib), used[StreamDeadLetters], 1e-5)
	}
	g.ChangeStream(StreamDeadLetters, func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 })
	used, err := g.bus("deliver").StreamUsage(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.InDelta(t, 0.5, used[StreamDeadLetters], 0, "an operator may also limit the number of messages")

	require.NoError(t, g.JS().DeleteStream(t.Context(), StreamUsers))
	b := g.bus("deliver")
	used, err = b.StreamUsage(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.Zero(t, used[StreamUsers], "a missing stream uses nothing")
	require.Positive(t, used[StreamMessages])

	g.Stop()
	used, err = b.StreamUsage(bustest.Within(t, bustest.Soon))
	require.ErrorIs(t, err, ErrUnavailable)
	require.Empty(t, used)
}
