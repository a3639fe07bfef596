package e2e

import (
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// insertAcks has n acknowledgements to a user wait, each in a row of its own.
func insertAcks(s *server, user string, n int) {
	s.t.Helper()
	s.exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, $1, g::text, 2, 'zoe', 'x', '1', false, 1, 1 from generate_series(1, $2) g
			returning id
		)
		insert into event_outbox (kind, ids) select 'message.saved', array[id] from m`, user, n)
}

// createLimited makes a stream that is full with n messages.
func createLimited(o *postOffice, name, subjects string, n int64) jetstream.StreamConfig {
	o.t.Helper()
	limits := jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects}, Discard: jetstream.DiscardNew, MaxMsgs: n, Duplicates: time.Minute,
	}
	_, err := o.jetStream().CreateStream(o.t.Context(), limits)
	require.NoError(o.t, err)
	return limits
}

// removeLimit gives a stream room again.
func removeLimit(o *postOffice, limits jetstream.StreamConfig) {
	o.t.Helper()
	limits.MaxMsgs = -1
	_, err := o.jetStream().UpdateStream(o.t.Context(), limits)
	require.NoError(o.t, err)
}

// messagesIn is how many messages a stream holds.
func messagesIn(o *postOffice, stream string) int {
	o.t.Helper()
	s, err := o.jetStream().Stream(o.t.Context(), stream)
	require.NoError(o.t, err)
	return int(s.CachedInfo().State.Msgs)
}

func metricsOf(t *testing.T, base string) string {
	t.Helper()
	res, err := http.Get(base + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(text)
}

func TestWebhooksGoOnWhileTheStreamOfUsersIsFull(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	limits := createLimited(o, "USERS", "inbox.>", 1)
	insertAcks(o.looker, "ann", 20) // far more than the relay takes at once, and first
	c := o.grow(allowLoopback)
	shop := newReceiver(t, nil)
	c.endpoint(shop.URL)
	finished := c.finish(3)
	require.Eventually(t, func() bool { return shop.got() == 3 }, waitLimit, 10*time.Millisecond, "webhooks leave")
	requireEachOnce(shop, t, finished)
	require.Equal(t, 19, c.looker.count(`select count(*) from event_outbox`))
	c.until(c.save("msg.orders.paid", once), "sent") // messages too
	relay := c.processes["relay"]
	require.Equal(t, 1, strings.Count(relay.Output(), `"msg":"stream paused: `), "once, and not at each try")
	require.Contains(t, relay.Output(), `"stream":"USERS","reason":"`)
	require.Contains(t, metricsOf(t, c.addresses["relay"]), `sendonce_stream_paused{stream="USERS"} 1`)

	removeLimit(o, limits)
	require.Eventually(t, func() bool { return waitingEvents(c) == 0 }, waitLimit, 10*time.Millisecond, "the acknowledgements follow")
	require.Equal(t, 20, messagesIn(o, "USERS"))
	require.NoError(t, relay.WaitFor(t.Context(), `"msg":"stream resumed"`))
	require.NotContains(t, metricsOf(t, c.addresses["relay"]), "sendonce_stream_paused{")
}

func TestUsersHearOnWhileTheStreamOfEventsIsFull(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	limits := createLimited(o, "EVENTS", "evt.>", 1)
	removeLimit(o, createLimited(o, "USERS", "inbox.>", 1))
	o.looker.exec(`insert into event_outbox (kind, ids) select 'task.succeeded', array[gen_random_uuid()] from generate_series(1, 20)`)
	relay := o.at(o.start("relay"))
	require.Equal(t, 204, relay.tick("relay").status)
	require.Equal(t, 19, o.looker.count(`select count(*) from event_outbox`))
	insertAcks(o.looker, "ann", 20)
	require.Equal(t, 204, relay.tick("relay").status)
	require.Equal(t, 20, messagesIn(o, "USERS"))
	require.Equal(t, 19, o.looker.count(`select count(*) from event_outbox where stream = 'EVENTS'`))

	removeLimit(o, limits)
	o.looker.exec(`update stream_pauses set until = now()`)
	require.Equal(t, 204, relay.tick("relay").status)
	require.Zero(t, o.looker.count(`select count(*) from event_outbox`))
	require.Equal(t, 20, messagesIn(o, "EVENTS"))
}

func TestOneFullInboxHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	_, err := o.jetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "USERS", Subjects: []string{"inbox.>"}, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1,
	})
	require.NoError(t, err)
	o.save("user:ann")
	relay := o.at(o.start("relay"))
	waitAllSent(o, func() { require.Equal(t, 204, relay.tick("relay").status) })
	var waiting []string
	for range 3 {
		waiting = append(waiting, o.save("user:ann"))
	}
	insertAcks(o.looker, "ann", 8)
	bob := o.save("user:bob")
	require.Equal(t, 204, relay.tick("relay").status)
	require.Equal(t, "sent", o.state(bob).State)
	require.Zero(t, o.looker.count(`select count(*) from stream_pauses`))
	for _, id := range waiting {
		require.Contains(t, o.state(id).LastError, "takes no more messages for now")
	}
	require.Equal(t, 8, o.looker.count(`select count(*) from event_outbox where next_at > now()`))
	insertAcks(o.looker, "carl", 1)
	require.Equal(t, 204, relay.tick("relay").status)
	require.Equal(t, 3, messagesIn(o, "USERS"), "carl's acknowledgement is there")
}

// A stream that is full of what is over makes room for what waits for it.
func TestFullStreamsAreTrimmedAndGoOn(t *testing.T) {
	t.Parallel()
	for stream, c := range map[string]struct{ subjects, to string }{
		"MESSAGES": {"msg.>", "msg.orders.paid"},
		"USERS":    {"inbox.>", "user:bob"},
	} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			o := &postOffice{t: t, url: sandbox.NewDatabase(t), nats: newNATS(t)}
			o.looker = (&server{t: t}).connect(o.url)
			createLimited(o, stream, c.subjects, 10)
			_, h := environment(t, o.url, func(cfg *fn.Config) {
				ahead := func() time.Time { return time.Now().Add(time.Hour + time.Minute) }
				cfg.Bus = bus.Config{URL: natsURL(t, o.nats.URL(), bus.UserAll), Replicas: 1, Now: ahead}
			})
			web := serveHandler(t, h)
			o.client = api.NewClient(web.url, "admin", "secret")
			tick := func(function string) { require.Equal(t, 204, web.tick(function).status) }
			for range 10 {
				o.save(c.to, once)
			}
			waitAllSent(o, func() { tick("relay") })
			const more = 3
			var waiting []string
			for range more {
				waiting = append(waiting, o.save(c.to, once))
			}
			tick("relay")
			require.Equal(t, more, o.looker.count(`select count(*) from message_live`))
			tick("relay")
			tick("deliver")
			require.Less(t, messagesIn(o, stream), 10, "what is over and old is gone")
			tick("relay")
			for _, id := range waiting {
				require.Equal(t, "sent", o.state(id).State, "without waiting for the end of a pause")
			}
		})
	}
}

func TestWebhooksGoOnWhileTheClusterHasNoLeaderForUsers(t *testing.T) {
	if os.Getenv("SENDONCE_CLUSTER") == "" {
		t.Skip("make cluster runs it; in shared/bus, TestStreamWithoutLeaderIsAwayAlone is the short form")
	}
	t.Parallel()
	cluster := sandbox.NewNATSCluster(t, 3)
	o := &postOffice{t: t, url: sandbox.NewDatabase(t), bin: binary(t)}
	o.env = settings(o.url, "NATS_URL="+cluster.URL())
	o.looker = (&server{t: t}).connect(o.url)
	c := o.grow(allowLoopback)
	shop := newReceiver(t, nil)
	c.endpoint(shop.URL)
	finished := c.finish(1)
	require.Eventually(t, func() bool { return shop.got() == 1 }, waitLimit, 10*time.Millisecond, "all is up")

	nc, err := nats.Connect(cluster.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	leader := func(stream string) string {
		s, err := js.Stream(t.Context(), stream)
		require.NoError(t, err)
		return s.CachedInfo().Cluster.Leader
	}
	// USERS goes to a server that none of the others need.
	needed := []string{leader("WAKE"), leader("EVENTS")}
	host := cluster[slices.IndexFunc(cluster, func(s *sandbox.NATSServer) bool { return !slices.Contains(needed, s.Name) })]
	var users jetstream.Stream
	require.Eventually(t, func() bool {
		users, err = js.Stream(t.Context(), "USERS")
		return err == nil
	}, waitLimit, 10*time.Millisecond, "the trigger makes it")
	placed := users.CachedInfo().Config
	placed.Placement = &jetstream.Placement{Tags: []string{host.Name}}
	require.NoError(t, js.DeleteStream(t.Context(), "USERS"))
	_, err = js.CreateStream(t.Context(), placed)
	require.NoError(t, err)
	host.Kill()

	insertAcks(c.looker, "ann", 20)
	finished = append(finished, c.finish(3)...)
	require.Eventually(t, func() bool { return shop.got() == 4 }, waitLimit, 10*time.Millisecond, "webhooks leave")
	requireEachOnce(shop, t, finished)
	// A webhook may be there before the relay has committed that its event is published.
	require.Eventually(t, func() bool { return waitingEvents(c) == 20 }, waitLimit, 10*time.Millisecond, "and the acknowledgements wait")
	require.Eventually(t, func() bool {
		return c.looker.count(`select count(*) from stream_pauses where stream = 'USERS' and failures > 1`) == 1
	}, waitLimit, 10*time.Millisecond)
	finished = append(finished, c.finish(1)...)
	began := time.Now()
	require.Eventually(t, func() bool { return shop.got() == 5 }, waitLimit, 10*time.Millisecond)
	t.Logf("an outcome was told %v after its report while USERS had no leader", time.Since(began).Round(time.Millisecond))
	requireEachOnce(shop, t, finished)

	host.Start()
	require.Eventually(t, func() bool { return waitingEvents(c) == 0 }, 2*waitLimit, 20*time.Millisecond, "the acknowledgements follow")
}
