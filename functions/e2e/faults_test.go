package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// outage is how long a fault lasts: 1 s, or SENDONCE_FAULT_SECONDS.
func outage(t *testing.T) time.Duration { return secondsFrom(t, "SENDONCE_FAULT_SECONDS", time.Second) }

// secondsFrom reads a number of seconds from an environment variable; if the variable is not set, it returns fallback.
func secondsFrom(t *testing.T, name string, fallback time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	seconds, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return time.Duration(seconds) * time.Second
}

// There are two outages. The safety tick is 15 minutes, and the load ends during the second outage. So only the check that
// the trigger makes when it connects can cause the sends of the messages that were saved during the second outage.
func TestMessagesSavedWithoutNATSAreSentOnce(t *testing.T) {
	t.Parallel()
	c := cluster.OpenMessages(t)
	c.StartFunctions("submit", "claim", "report")
	c.StartRelay()
	g, l := load.New(t.Context()), load.NewLedger()
	t.Cleanup(g.Stop)
	const pace = 20 * time.Millisecond
	for n := range 2 {
		g.Start("submit", pace, submitCall(clientsOf(c, "submit"), l))
		g.Start("message", pace, messageCall(clientsOf(c, "messages"), l, fmt.Sprint("sender-", n), "msg.orders.paid", "", cluster.WithoutConfirm))
	}
	g.Start("claim or report", pace, claimCall(c, l))
	waitSucceeded(t, g, 10)
	require.NoError(t, c.NATS.Stop())
	for end := time.Now().Add(outage(t)); time.Now().Before(end); {
		waitSucceeded(t, g, 10)
	}
	c.StartNATS()
	cluster.Eventually(t, func() bool { return c.Admin.Count(`select count(*) from message_live`) <= 2 }, "the relay catches up")
	require.NoError(t, c.NATS.Stop())
	waitSucceeded(t, g, 10)
	g.Stop() // so that no call after the outage publishes a wake-up
	waiting := c.Admin.Count(`select count(*) from message_live`)
	require.NotZero(t, waiting)
	c.StartNATS()
	back := time.Now()
	sent, _, _ := l.Messages()
	messages := cluster.RequireSentOnce(c, sent)
	t.Logf("%d messages, %d of them waiting when NATS came back, sent %v later", sent, waiting, time.Since(back).Round(time.Millisecond))
	for kind, calls := range g.Outcomes() {
		require.Empty(t, calls.Failures, kind)
	}
	recordReceived(t, l, messages)
	require.NoError(t, l.CheckReceivedOnce())
	require.Empty(t, l.Overtaken(), "no message overtakes an earlier one of its sender")
	require.NoError(t, l.CheckTasks(t.Context(), c.Admin.Owner))
}
