package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// With the default safety tick, and with whoever reported them gone before NATS
// is back, nothing but the trigger's own look can bring the outcomes.
func TestAllGoesOnWhileNATSIsAwayAndOutcomesReportedThenAreToldOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t).grow(allowLoopback)
	shop := newReceiver(t, nil)
	secret := c.endpoint(shop.URL).Secret
	finished := c.finish(1)
	require.Equal(t, finished[0], shop.event(t, 1, secret).Subject) // all is up
	require.NoError(t, c.nats.Stop())
	pace, over := time.NewTicker(20*time.Millisecond), time.After(outage(t))
	defer pace.Stop()
	for away := true; away; {
		select {
		case <-pace.C:
			finished = append(finished, c.finish(1)...)
		case <-over:
			away = false
		}
	}
	require.NoError(t, c.processes["report"].Kill())
	require.Equal(t, 1, shop.got())
	require.Equal(t, len(finished)-1, waitingEvents(c), "all wait")
	c.nats = natsIn(t, c.options)
	back := time.Now()
	waitDelivered(c, len(finished))
	t.Logf("%d outcomes waited when NATS came back, told %v later", len(finished)-1, time.Since(back).Round(time.Millisecond))
	requireEachOnce(shop, t, finished)
}

func TestOutcomesThatDoNotFitIntoAFullStreamAreToldOnceItsLimitIsRaised(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	const n = 30
	limits := jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"evt.>"}, Discard: jetstream.DiscardNew, MaxMsgs: 10, Duplicates: time.Minute,
	}
	_, err := o.jetStream().CreateStream(t.Context(), limits)
	require.NoError(t, err)
	c := o.grow(allowLoopback)
	shop := newReceiver(t, nil)
	c.endpoint(shop.URL)
	finished := c.finish(n)
	require.Eventually(t, func() bool { left := waitingEvents(c); return left > 0 && shop.got() > 0 && left+shop.got() == n }, waitLimit, 10*time.Millisecond)
	require.Zero(t, c.looker.count(`select count(*) from dead_letters`))
	c.until(c.save("user:bob"), "sent") // other streams go on
	t.Logf("%d of %d outcomes fitted", shop.got(), n)

	limits.MaxMsgs = -1
	_, err = c.jetStream().UpdateStream(t.Context(), limits)
	require.NoError(t, err)
	waitDelivered(c, n)
	requireEachOnce(shop, t, finished)
}

func TestARelayKilledBetweenPublishAndDeleteHasEachEndpointToldOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t).grow(allowLoopback)
	shop, bank := newReceiver(t, nil), newReceiver(t, nil)
	c.endpoint(shop.URL)
	c.endpoint(bank.URL)
	finished := c.finish(1)
	waitDelivered(c, 2) // all is up
	held, release := holdChange(c.looker, "delete on event_outbox")
	finished = append(finished, c.finish(3)...)
	held()
	require.Equal(t, 4, undeliveredEvents(c), "published, and about to be deleted")
	killRelay(c.postOffice, c.processes["relay"])
	release()
	require.Equal(t, 3, waitingEvents(c), "nothing was deleted")

	c.run("relay")
	require.Equal(t, 204, c.at(c.addresses["relay"]).tick("relay").status)
	require.Zero(t, waitingEvents(c))
	require.Equal(t, 4, undeliveredEvents(c), "the same again is the same to the broker")
	repeatEvents(c)
	require.Equal(t, 8, undeliveredEvents(c), "but not for ever")
	waitDelivered(c, 2*4)
	requireEachOnce(shop, t, finished)
	requireEachOnce(bank, t, finished)
}

// waitingEvents counts the events that no stream has taken yet.
func waitingEvents(c *city) int {
	return c.looker.count(`select coalesce(sum(cardinality(ids)), 0) from event_outbox`)
}

// undeliveredEvents is how many the stream of events holds.
func undeliveredEvents(c *city) int {
	c.t.Helper()
	stream, err := c.jetStream().Stream(c.t.Context(), "EVENTS")
	require.NoError(c.t, err)
	return int(stream.CachedInfo().State.Msgs)
}

// repeatEvents publishes all events again, as if the stream had forgotten their
// ids, and waits until all are taken.
func repeatEvents(c *city) {
	c.t.Helper()
	js := c.jetStream()
	stream, err := js.Stream(c.t.Context(), "EVENTS")
	require.NoError(c.t, err)
	last := stream.CachedInfo().State.LastSeq
	for seq := uint64(1); seq <= last; seq++ {
		m, err := stream.GetMsg(c.t.Context(), seq)
		require.NoError(c.t, err)
		m.Header.Del("Nats-Msg-Id")
		_, err = js.PublishMsg(c.t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
		require.NoError(c.t, err)
	}
	require.Eventually(c.t, func() bool {
		record, err := stream.Consumer(c.t.Context(), "record")
		return err == nil && record.CachedInfo().AckFloor.Stream == 2*last
	}, waitLimit, 10*time.Millisecond)
}

func TestAnEndpointThatFailsForTooLongIsDisabledAndWhatRestedIsToldOnceItIsEnabled(t *testing.T) {
	t.Parallel()
	w := openCluster(t, allowLoopback, "SENDONCE_WEBHOOK_DISABLE_AFTER=1s", "SENDONCE_SAFETY_TICK=1h")
	broken, other, witness := newReceiver(t, answers(500, 500, 204)), newReceiver(t, nil), newReceiver(t, nil)
	registered := w.endpoint(broken.URL)
	secret := w.endpoint(other.URL, "webhook.disabled").Secret
	w.endpoint(witness.URL, "task.succeeded")
	first := w.finishOne()
	require.Eventually(t, func() bool {
		return w.looker.count(`select count(*) from webhook_endpoints where enabled and failing_since < now() - interval '1 second'`) == 1
	}, waitLimit, 10*time.Millisecond, "it has failed for a second, which only the next failure tells")
	second := w.finishOne()

	told := other.event(t, 1, secret)
	require.Equal(t, "sendonce.webhook.disabled.v1", told.Type)
	var data api.EndpointEventData
	require.NoError(t, json.Unmarshal(told.Data, &data))
	require.Equal(t, registered.ID, data.EndpointID)
	require.Equal(t, "failing", data.Reason)
	require.NotNil(t, data.FailingSince)
	disabled, err := w.client.Endpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.False(t, disabled.Enabled)
	require.Equal(t, "failing", disabled.DisabledReason)
	w.finishOne() // while it is disabled: not for it
	require.Eventually(t, func() bool { return witness.got() == 3 }, waitLimit, 10*time.Millisecond)
	waitDeliveries(w, "pending", 2)

	enabled, err := w.client.EnableEndpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.True(t, enabled.Enabled)
	require.Nil(t, enabled.FailingSince)
	subjects := []string{broken.event(t, 3, registered.Secret).Subject, broken.event(t, 4, registered.Secret).Subject}
	requireSame(t, []string{first, second}, subjects, "what rested is told")
	waitDeliveries(w, "delivered", 2+1+3)
	waitDeliveries(w, "pending", 0)
	require.Equal(t, 4, broken.got())
}

// Nothing but the lease is left of a deliver that was killed, and nothing but a
// wake-up at its end brings the delivery back: the tick is an hour away.
func TestADeliverKilledWhileItPostsTellsTheSameAgainWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("waits for a lease of 16 s: set SENDONCE_FAULT_SECONDS")
	}
	c := newCluster(t).grow(allowLoopback, "SENDONCE_WEBHOOK_TIMEOUT=1s", "SENDONCE_SAFETY_TICK=1h")
	hang := make(chan struct{})
	shop := newReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-hang
		}
	})
	t.Cleanup(func() { close(hang) })
	secret := c.endpoint(shop.URL).Secret
	finished := c.finish(1)
	first := shop.event(t, 1, secret)
	killed := time.Now()
	require.NoError(t, c.processes["deliver"].Kill())
	c.run("deliver")
	require.Eventually(t, func() bool { return shop.got() == 2 }, waitLimit, 10*time.Millisecond, "told again")
	t.Logf("told again %v after the kill", time.Since(killed).Round(time.Millisecond))
	require.Equal(t, first, shop.event(t, 2, secret))
	waitDelivered(c, 1)
	require.Equal(t, 2, shop.got())
	require.Equal(t, finished[0], first.Subject)
}
