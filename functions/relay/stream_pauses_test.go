package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// insertAcks inserts n acknowledgements to a user, each as an event of its own.
func insertAcks(s *cluster.Client, user string, n int) {
	s.T.Helper()
	s.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, $1, g::text, 2, 'zoe', 'x', '1', false, 1, 1 from generate_series(1, $2) g
			returning id
		)
		insert into event_outbox (kind, ids) select 'message.saved', array[id] from m`, user, n)
}

// createLimited creates a stream of at most n messages.
func createLimited(o *cluster.Cluster, name, subjects string, n int64) jetstream.StreamConfig {
	o.T.Helper()
	limits := jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects}, Discard: jetstream.DiscardNew, MaxMsgs: n, Duplicates: time.Minute,
	}
	_, err := o.JetStream().CreateStream(o.T.Context(), limits)
	require.NoError(o.T, err)
	return limits
}

// removeLimit removes the limit of a stream.
func removeLimit(o *cluster.Cluster, limits jetstream.StreamConfig) {
	o.T.Helper()
	limits.MaxMsgs = -1
	_, err := o.JetStream().UpdateStream(o.T.Context(), limits)
	require.NoError(o.T, err)
}

func TestFullInboxStreamDelaysNoWebhooks(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	limits := createLimited(o, "USERS", "inbox.>", 1)
	insertAcks(o.Admin, "ann", 20) // many more rows than a relay tries after a pause, inserted before all others
	c := o.StartEach()
	shop := cluster.NewReceiver(t, nil)
	c.AddEndpoint(shop.URL, "task.succeeded") // not the alert that USERS is full
	finished := c.FinishTasks(3)
	cluster.Eventually(t, func() bool { return shop.Calls() == 3 }, "webhooks are posted")
	shop.RequireEachOnce(t, finished)
	require.Equal(t, 19, c.Admin.Count(`select count(*) from event_outbox`))
	c.WaitMessage(c.Save("msg.orders.paid", cluster.WithoutConfirm), "sent") // a full USERS does not delay messages to another stream either
	relay := c.Process("relay")
	require.Equal(t, 1, strings.Count(relay.Output(), `"msg":"stream paused: `), "the pause is logged once, not at each try")
	require.Contains(t, relay.Output(), `"stream":"USERS","reason":"`)
	require.Contains(t, cluster.Metrics(t, c.Address("relay")), `sendonce_stream_paused{stream="USERS"} 1`)

	removeLimit(o, limits)
	cluster.Eventually(t, func() bool { return c.WaitingEvents() == 0 }, "now the acknowledgements are published")
	require.Equal(t, 20, o.MessagesIn("USERS"))
	require.NoError(t, relay.WaitFor(t.Context(), `"msg":"stream resumed"`))
	cluster.Eventually(t, func() bool {
		return !strings.Contains(cluster.Metrics(t, c.Address("relay")), "sendonce_stream_paused{")
	}, "the metric, which is read once a second, shows no paused stream")
}

func TestFullInboxDelaysNoOtherInbox(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	_, err := o.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "USERS", Subjects: []string{"inbox.>"}, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1,
	})
	require.NoError(t, err)
	o.Save("user:ann")
	relay := o.At(o.Start("relay"))
	cluster.WaitAllSent(o, func() { require.Equal(t, 204, relay.Tick("relay").Status) })
	var waiting []string
	for range 3 {
		waiting = append(waiting, o.Save("user:ann"))
	}
	insertAcks(o.Admin, "ann", 8)
	bob := o.Save("user:bob")
	require.Equal(t, 204, relay.Tick("relay").Status)
	require.Equal(t, "sent", o.Message(bob).State)
	require.Zero(t, o.Admin.Count(`select count(*) from stream_pauses`))
	for _, id := range waiting {
		require.Contains(t, o.Message(id).LastError, "too many messages to this receiver are stored")
	}
	require.Equal(t, 8, o.Admin.Count(`select count(*) from event_outbox where next_at > created_at`), "each event has its own pause")
	insertAcks(o.Admin, "carl", 1)
	require.Equal(t, 204, relay.Tick("relay").Status)
	require.Equal(t, 3, o.MessagesIn("USERS"), "the third one is carl's acknowledgement")
}

// Finished messages are removed from a full stream, so that waiting messages are sent.
func TestFullStreamsAreTrimmed(t *testing.T) {
	t.Parallel()
	for stream, c := range map[string]struct{ subjects, to string }{
		"MESSAGES": {"msg.>", "msg.orders.paid"},
		"USERS":    {"inbox.>", "user:bob"},
	} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			o := cluster.New(t)
			createLimited(o, stream, c.subjects, 10)
			// This trigger reaches no function: it runs only because deliver requests the headers of messages from it.
			require.NoError(t, o.StartTrigger("http://127.0.0.1:1").WaitFor(t.Context(), `"triggering"`))
			web := cluster.ServeOn(t, o.DatabaseURL, func(cfg *settings.Config) {
				// All messages are old enough to be removed.
				ahead := func() time.Time { return time.Now().Add(time.Hour + time.Minute) }
				cfg.Bus = bus.Config{URL: cluster.NATSURL(t, o.NATS.URL(), bus.UserAll), Replicas: 1, Now: ahead}
			})
			o.Client = api.NewClient(web.URL, "admin", "secret")
			tick := func(function string) { require.Equal(t, 204, web.Tick(function).Status) }
			for range 10 {
				o.Save(c.to, cluster.WithoutConfirm)
			}
			cluster.WaitAllSent(o, func() { tick("relay") })
			var waiting []string
			for range 3 {
				waiting = append(waiting, o.Save(c.to, cluster.WithoutConfirm))
			}
			tick("relay")
			require.Equal(t, len(waiting), o.Admin.Count(`select count(*) from message_live`))
			tick("relay")
			tick("deliver")
			require.Less(t, o.MessagesIn(stream), 10, "finished and old messages are removed")
			tick("relay")
			for _, id := range waiting {
				require.Equal(t, "sent", o.Message(id).State, "without waiting for the end of a pause")
			}
		})
	}
}

func TestInboxStreamWithoutLeaderDelaysNoWebhooks(t *testing.T) {
	cluster.OnlyWithClusters(t)
	t.Parallel()
	servers := sandbox.NewNATSCluster(t, 3)
	c := cluster.NewAt(t, sandbox.NewDatabase(t), servers.URL()).StartEach()
	shop := cluster.NewReceiver(t, nil)
	c.AddEndpoint(shop.URL)
	finished := c.FinishTasks(1)
	cluster.Eventually(t, func() bool { return shop.Calls() == 1 }, "all processes run")

	nc, err := nats.Connect(servers.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	leader := func(stream string) string {
		s, err := js.Stream(t.Context(), stream)
		require.NoError(t, err)
		return s.CachedInfo().Cluster.Leader
	}
	// USERS is moved to a server that leads neither WAKE nor EVENTS.
	leaders := []string{leader("WAKE"), leader("EVENTS")}
	host := servers[slices.IndexFunc(servers, func(s *sandbox.NATSServer) bool { return !slices.Contains(leaders, s.Name) })]
	var users jetstream.Stream
	cluster.Eventually(t, func() bool {
		users, err = js.Stream(t.Context(), "USERS")
		return err == nil
	}, "the trigger creates USERS")
	config := users.CachedInfo().Config
	config.Placement = &jetstream.Placement{Tags: []string{host.Name}}
	require.NoError(t, js.DeleteStream(t.Context(), "USERS"))
	_, err = js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	host.Kill()

	insertAcks(c.Admin, "ann", 20)
	finished = append(finished, c.FinishTasks(3)...)
	cluster.Eventually(t, func() bool { return shop.Calls() == 4 }, "webhooks are posted")
	shop.RequireEachOnce(t, finished)
	// A webhook may arrive before the relay has committed that its event is published.
	cluster.Eventually(t, func() bool { return c.WaitingEvents() == 20 }, "the acknowledgements wait")
	c.Admin.WaitCount(1, `select count(*) from stream_pauses where stream = 'USERS' and failures > 1`)
	finished = append(finished, c.FinishTasks(1)...)
	began := time.Now()
	cluster.Eventually(t, func() bool { return shop.Calls() == 5 })
	t.Logf("an outcome was delivered %v after its report while USERS had no leader", time.Since(began).Round(time.Millisecond))
	shop.RequireEachOnce(t, finished)

	host.Start()
	require.Eventually(t, func() bool { return c.WaitingEvents() == 0 }, 2*cluster.WaitLimit, 20*time.Millisecond, "now the acknowledgements are published")
}
