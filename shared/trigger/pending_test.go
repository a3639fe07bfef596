package trigger

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/settings"
)

// Even if the backlog is larger than bus.MaxPending, the server does not close the connection.
func TestLargeBacklogFitsMaxPending(t *testing.T) {
	t.Parallel()
	const n = 120 // messages: 7.5 MiB in each stream, and bus.MaxPending is 4 MiB
	large := strings.Repeat("x", 64<<10)
	g := newSecuredBroker(t)
	relay, messages := g.bus("relay"), g.bus("messages")
	for i := range n {
		event := eventMessage(strconv.Itoa(i + 1))
		require.NoError(t, event.Event.SetData("application/json", large))
		publishAll(t, relay, event)
		accepted := acceptance(t, strconv.Itoa(i+2), large)
		accepted.Fingerprint = "f"
		_, err := messages.Accept(bustest.Within(t, bustest.Soon), accepted)
		require.NoError(t, err)
	}
	f := newFunction(t, func(http.ResponseWriter, call, int) {})
	b := g.bus(bus.UserTrigger)
	record, save := Routes(time.Hour)[4], SaveRoutes(settings.TwoPhase{Shards: 1, BatchSize: 500, BatchWait: time.Millisecond}, 0)[1]
	trigger := runTrigger(t, b, testConfig(f), record, save)
	bustest.Eventually(t, func() bool {
		counts := trigger.Counts()
		return counts[record.Durable].Acked == n+1 && counts[save.Durable].Acked == n+1 // 1: newSecuredBroker published one of each
	}, "all delivered")
	conn, err := b.AwaitConnection(t.Context())
	require.NoError(t, err)
	require.Zero(t, conn.JetStream().Conn().Stats().Reconnects, "the server never closed the connection of the trigger")
}
