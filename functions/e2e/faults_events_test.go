package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// The safety tick is 15 minutes, and the process of the function report is killed before NATS is back. So only the
// check that the trigger makes when it connects can cause the deliveries.
func TestOutcomesReportedWithoutNATSAreDeliveredOnce(t *testing.T) {
	t.Parallel()
	c := cluster.New(t).StartEach()
	shop := cluster.NewReceiver(t, nil)
	secret := c.AddEndpoint(shop.URL).Secret
	finished := c.FinishTasks(1)
	require.Equal(t, finished[0], shop.Event(t, 1, secret).Subject, "before the outage, outcomes are delivered")
	require.NoError(t, c.NATS.Stop())
	pace, outageEnds := time.NewTicker(20*time.Millisecond), time.After(outage(t))
	defer pace.Stop()
	for away := true; away; {
		select {
		case <-pace.C:
			finished = append(finished, c.FinishTasks(1)...)
		case <-outageEnds:
			away = false
		}
	}
	require.NoError(t, c.Process("report").Kill())
	require.Equal(t, 1, shop.Calls())
	require.Equal(t, len(finished)-1, c.WaitingEvents(), "all events of the outage wait")
	c.StartNATS()
	back := time.Now()
	cluster.WaitAllDelivered(c, len(finished))
	t.Logf("%d outcomes waited when NATS came back, delivered %v later", len(finished)-1, time.Since(back).Round(time.Millisecond))
	shop.RequireEachOnce(t, finished)
}
