package e2e

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// The safety tick is 15 minutes, and the reporting process is killed before NATS is back,
// so only the trigger's check when it connects can bring the outcomes.
func TestOutcomesReportedWithoutNATSAreDeliveredOnce(t *testing.T) {
	t.Parallel()
	c := cluster.New(t).StartEach(cluster.AllowLoopback)
	shop := cluster.NewReceiver(t, nil)
	secret := c.AddEndpoint(shop.URL).Secret
	finished := c.FinishTasks(1)
	require.Equal(t, finished[0], shop.Event(t, 1, secret).Subject) // all is up
	require.NoError(t, c.NATS.Stop())
	pace, over := time.NewTicker(20*time.Millisecond), time.After(outage(t))
	defer pace.Stop()
	for away := true; away; {
		select {
		case <-pace.C:
			finished = append(finished, c.FinishTasks(1)...)
		case <-over:
			away = false
		}
	}
	require.NoError(t, c.Process("report").Kill())
	require.Equal(t, 1, shop.Calls())
	require.Equal(t, len(finished)-1, c.WaitingEvents(), "all wait")
	c.StartNATS()
	back := time.Now()
	cluster.WaitAllDelivered(c, len(finished))
	t.Logf("%d outcomes waited when NATS came back, delivered %v later", len(finished)-1, time.Since(back).Round(time.Millisecond))
	shop.RequireEachOnce(t, finished)
}

func TestRelayKilledAfterPublishDeliversOnce(t *testing.T) {
	t.Parallel()
	c := cluster.New(t).StartEach(cluster.AllowLoopback)
	shop, bank := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	c.AddEndpoint(shop.URL)
	c.AddEndpoint(bank.URL)
	finished := c.FinishTasks(1)
	cluster.WaitAllDelivered(c, 2) // all is up
	held, release := cluster.HoldChange(c.Admin, "delete on event_outbox")
	finished = append(finished, c.FinishTasks(3)...)
	held()
	require.Equal(t, 4, undeliveredEvents(c), "published, and about to be deleted")
	c.KillHeldRelay(c.Process("relay"))
	release()
	require.Equal(t, 3, c.WaitingEvents(), "nothing was deleted")

	c.StartFunctions("relay")
	require.Equal(t, 204, c.At(c.Address("relay")).Tick("relay").Status)
	require.Zero(t, c.WaitingEvents())
	require.Equal(t, 4, undeliveredEvents(c), "the same again is the same to the broker")
	repeatEvents(c)
	require.Equal(t, 8, undeliveredEvents(c), "but not once the stream has forgotten their ids")
	cluster.WaitAllDelivered(c, 2*4)
	shop.RequireEachOnce(t, finished)
	bank.RequireEachOnce(t, finished)
}

// undeliveredEvents counts the events in the stream.
func undeliveredEvents(c *cluster.Cluster) int {
	c.T.Helper()
	stream, err := c.JetStream().Stream(c.T.Context(), "EVENTS")
	require.NoError(c.T, err)
	return int(stream.CachedInfo().State.Msgs)
}

// repeatEvents publishes all events again without their Nats-Msg-Id, and waits until
// deliver has acknowledged them.
func repeatEvents(c *cluster.Cluster) {
	c.T.Helper()
	js := c.JetStream()
	stream, err := js.Stream(c.T.Context(), "EVENTS")
	require.NoError(c.T, err)
	last := stream.CachedInfo().State.LastSeq
	for seq := uint64(1); seq <= last; seq++ {
		m, err := stream.GetMsg(c.T.Context(), seq)
		require.NoError(c.T, err)
		m.Header.Del("Nats-Msg-Id")
		_, err = js.PublishMsg(c.T.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
		require.NoError(c.T, err)
	}
	cluster.Eventually(c.T, func() bool {
		record, err := stream.Consumer(c.T.Context(), "record")
		return err == nil && record.CachedInfo().AckFloor.Stream == 2*last
	})
}
