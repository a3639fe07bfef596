package relay_test

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestMessageReachesStreamAndIsConfirmed(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	id := o.Save("msg.orders.paid", func(r *api.MessageRequest) { r.Type = "order.paid.v1" })
	o.WaitMessage(id, "sent")
	m := cluster.StoredMessages(o, 1)[0]
	require.Equal(t, id, m.Header.Get("ce-id"), "the id of the event is the id of the message")
	require.Equal(t, "order.paid.v1", m.Header.Get("ce-type"))
	require.Regexp(t, "^"+id+`\.[0-9a-f]{8}\.1\.1$`, m.Header.Get("Nats-Msg-Id"))
	require.JSONEq(t, `{"order":4711}`, string(m.Data))
	for range 2 {
		require.NoError(t, o.Client.ConfirmMessage(t.Context(), id))
	}
	require.Equal(t, "received", o.Message(id).State)

	user := o.Save("user:bob")
	require.Equal(t, "sent", o.WaitMessage(user, "sent").State, "a message to a user is sent to the user's inbox")
}

func TestMessageWithoutStreamIsStuckAndRedriven(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	sends := 1
	typo := o.Save("ordres.paid", func(r *api.MessageRequest) { r.MaxSends = &sends })
	good := o.Save("msg.orders.paid")
	o.WaitMessage(good, "sent")
	stuck := func() []any { return o.Admin.Get("/api/v1/messages/stuck?kind=sending").Data("items").([]any) }
	cluster.Eventually(t, func() bool { return len(stuck()) == 1 })
	const reason = "no stream has the subject ordres.paid"
	listed := stuck()[0].(map[string]any)
	require.Equal(t, typo, listed["server_msg_id"])
	require.Contains(t, listed["last_error"], reason)
	require.EqualValues(t, 0, listed["remaining_sends"])

	redrive := "/api/v1/messages/" + typo + "/redrive"
	require.Equal(t, 200, o.Admin.Post(redrive, "").Status)
	cluster.Eventually(t, func() bool { return o.Message(typo).Stuck }, "there is still no such stream")
	require.Equal(t, 2, o.Message(typo).Epoch)
	require.Contains(t, o.Message(typo).LastError, reason)

	ordres, err := o.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDRES", Subjects: []string{"ordres.>"}})
	require.NoError(t, err)
	require.Equal(t, 200, o.Admin.Post(redrive, "").Status)
	require.Empty(t, o.WaitMessage(typo, "sent").LastError)
	require.Empty(t, stuck())
	stored, err := ordres.GetLastMsgForSubject(t.Context(), "ordres.paid")
	require.NoError(t, err)
	require.Equal(t, typo, stored.Header.Get("ce-id"))
}

func TestRelayRefusesForgedDestinations(t *testing.T) {
	t.Parallel()
	o := cluster.Open(t)
	o.AddEndpoint(cluster.NewReceiver(t, nil).URL)
	forge := func(kind message.Kind, destination, eventType, data string, n int) {
		o.Admin.Exec(`with m as (
				insert into messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
				select gen_random_uuid(), gen_random_uuid(), 0, 'x', gen_random_uuid(), gen_random_uuid(), $1, $2, $3, $4, false, 1, 1
				from generate_series(1, $5::integer) returning id)
			insert into message_live (id, remaining_sends, kind, stream, caller_id) select id, 1, 0, 'MESSAGES', 0 from m`, kind, destination, eventType, data, n)
	}
	o.FinishTask()
	cluster.Eventually(t, func() bool { return o.MessagesIn("EVENTS") == 1 })

	forge(message.Subject, "$JS.API.STREAM.PURGE.EVENTS", "t", "{}", 1)
	forge(message.Subject, bus.EventDelivered, "sendonce.message.delivered.v1", `{"delivered_at":"0000-01-01T00:00:00Z","messages":[]}`, 300)
	forge(message.Subject, "inbox.bob", "t", "{}", 1)
	forge(message.URL, "https://shop.example/", "t", "{}", 1)
	forge(message.User, "b*b", "t", "{}", 1)
	o.WaitMessage(o.Save("msg.orders.paid", cluster.WithoutConfirm), "sent")
	o.Admin.WaitCount(304, `select count(*) from message_live where remaining_sends = 0 and last_error like 'invalid destination: %'`)
	require.Equal(t, 1, o.MessagesIn("EVENTS"), "nothing was purged or added")
	require.Empty(t, o.Inbox("bob"))
	require.Equal(t, 1, strings.Count(o.Process(cluster.All).Output(), "a message in the database has an invalid destination"))
}

// One caller may have very many events, and the trigger makes only one call of relay at a time.
func TestMessagesAreRelayedWhileManyEventsAreDue(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartWithoutTrigger()
	o.EnsureStreams()
	const rows, rowEvents = 30, 2000
	o.Admin.Exec(`insert into event_outbox (kind, ids) select 'task.processing', array_fill(gen_random_uuid(), array[$2::int]) from generate_series(1, $1::int)`, rows, rowEvents)
	status := make(chan int)
	go func() { status <- o.Admin.Tick("relay").Status }()
	cluster.Eventually(t, func() bool { return o.WaitingEvents() < rows*rowEvents })
	id := o.Save("user:bob")
	require.Positive(t, o.WaitingEvents(), "relay is still publishing events")
	require.Equal(t, 204, cluster.Within(t, cluster.WaitLimit, status, "the response of relay"))
	if o.Message(id).State != "sent" { // on a slow machine, the call may have ended before it looked at the message
		require.Equal(t, 204, o.Admin.Tick("relay").Status)
	}
	require.Equal(t, "sent", o.Message(id).State)
}

func TestEventOfMissingAlertBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	o := cluster.Open(t)
	o.Admin.Exec(`insert into event_outbox (kind, ids) values ('alert.cleared', array[gen_random_uuid()])`)
	o.Admin.Tick("relay")
	cluster.Eventually(t, func() bool { return o.WaitingEvents() == 0 })
	require.Equal(t, 1, o.Admin.Count(`select count(*) from dead_letters where function = 'relay' and reason = 'the alert does not exist'`))
	events, err := o.JetStream().Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	require.Zero(t, events.CachedInfo().State.LastSeq, "an event without the alert's data is not published")
}

func TestStreamStoresOnceIfRelayIsKilledAfterPublish(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	points, effects := cluster.NewPointsService(o)
	o.StartRelay()
	o.WaitMessage(o.Save("msg.orders.paid"), "sent") // now all processes run
	held, release := cluster.HoldChange(o.Admin, "update on message_live")
	id := o.Save("msg.orders.paid")
	held()
	cluster.StoredMessages(o, 2)
	o.KillHeldRelay(o.Process("relay"))
	release()
	require.Equal(t, "sending", o.Message(id).State, "the send was not recorded")

	o.StartRelay()
	o.WaitMessage(id, "sent")
	require.Regexp(t, id+`\.[0-9a-f]{8}\.1\.1$`, cluster.StoredMessages(o, 2)[1].Header.Get("Nats-Msg-Id"), "the repeat has the same Nats-Msg-Id, so the stream drops it")
	cluster.Consume(o, points, jetstream.DeliverAllPolicy)
	o.WaitMessage(id, "received")
	cluster.Eventually(t, func() bool { return effects() == 2 })
	require.Zero(t, o.Admin.Count(`select count(*) from message_live`), "no message will be sent again")
	cluster.StoredMessages(o, 2)
}

// waitForIdleRelay waits until a relay has handled a wake-up and found no event.
func waitForIdleRelay(t *testing.T, relay *sandbox.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.WaitLimit)
	defer cancel()
	require.NoError(t, relay.WaitFor(ctx, `"events":0`), "the relay was not called, or found an event")
}

// A relay that has locked an event dies with its trigger. Before it dies, another relay skips the locked
// event and acknowledges its own wake-up, so no wake-up is left.
func TestEventsOfKilledRelayAndTriggerArePublished(t *testing.T) {
	t.Parallel()
	o := cluster.New(t, "SENDONCE_SAFETY_TICK=1h")
	o.Admin.RaiseTimeoutsOfFunctions() // the stopped relay must hold its lock until it is killed
	o.StartRelay()
	relay, trigger := o.Process("relay"), o.Process("trigger")
	waitForIdleRelay(t, relay)
	held, release := cluster.HoldChange(o.Admin, "delete on event_outbox")
	o.Admin.Exec(`insert into event_outbox (kind, ids) values ('task.succeeded', array[gen_random_uuid()])`)
	_, err := o.JetStream().Publish(t.Context(), bus.WakeRelay, []byte("1"))
	require.NoError(t, err)
	held()
	require.NoError(t, relay.Signal(syscall.SIGSTOP)) // the stopped relay does not acknowledge its wake-up
	require.NoError(t, trigger.Kill())

	o.StartRelay()                          // the new trigger publishes a wake-up, which replaces the delivered wake-up
	waitForIdleRelay(t, o.Process("relay")) // the new relay finds the event locked
	consumer, err := o.JetStream().Consumer(t.Context(), bus.StreamWake, "relay")
	require.NoError(t, err)
	cluster.Eventually(t, func() bool {
		info, err := consumer.Info(t.Context())
		require.NoError(t, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	}, "no wake-up is left")
	o.KillHeldRelay(relay)
	release()
	o.Admin.WaitCount(0, `select count(*) from event_outbox`)
}

// recordStatuses records each status of each message in the table history.
func recordStatuses(s *cluster.Client) {
	s.Exec(`create table history (n bigserial, id uuid, status int);
		create function record_status() returns trigger language plpgsql security definer as $$
			begin insert into history (id, status) values (new.id, new.status); return null; end $$;
		create trigger record_status after insert or update on message_live for each row execute function record_status();
		create trigger record_status after insert or update on message_done for each row execute function record_status()`)
}

func TestConfirmationMayPrecedeStatusSent(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	points, effects := cluster.NewPointsService(o)
	o.StartRelay()
	first := o.Save("msg.orders.paid")
	o.WaitMessage(first, "sent")
	cluster.Consume(o, points, jetstream.DeliverAllPolicy)
	o.WaitMessage(first, "received") // now all processes run
	recordStatuses(o.Admin)
	held, release := cluster.HoldChange(o.Admin, "update on message_live")
	id := o.Save("msg.orders.paid")
	held()
	cluster.Eventually(t, func() bool { return effects() == 2 }, "the receiver has processed the message, and confirms it")
	require.Equal(t, "sending", o.Message(id).State)
	o.KillHeldRelay(o.Process("relay"))
	release()
	relay := o.At(o.Start("relay"))
	cluster.Eventually(t, func() bool {
		require.Equal(t, 204, relay.Tick("relay").Status)
		return o.Message(id).State != "sending"
	})
	require.Equal(t, "points", o.WaitMessage(id, "received").FinishedBy, "the receiver repeats the confirmation until the send is recorded")
	require.Equal(t, "0,1,2", o.Admin.QueryText(`select string_agg(status::text, ',' order by n) from history where id = $1`, id), "the status never moves back")
	cluster.StoredMessages(o, 2)
	require.Equal(t, 2, effects())
}

func TestRedriveReachesReceiverThatStartedLate(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	id := o.Save("msg.orders.paid")
	for remaining := o.Message(id).MaxSends - 1; remaining > 0; remaining-- {
		cluster.Eventually(t, func() bool { return o.Message(id).RemainingSends <= remaining }, remaining)
		o.Admin.Exec(`update message_live set next_at = now() where remaining_sends > 0`)
		_, err := o.JetStream().Publish(t.Context(), bus.WakeRelay, []byte("1"))
		require.NoError(t, err)
	}
	stuck := func() []any {
		return o.Admin.Get("/api/v1/messages/stuck?kind=sent").Data("items").([]any)
	}
	cluster.Eventually(t, func() bool { return len(stuck()) == 1 })
	require.Equal(t, id, stuck()[0].(map[string]any)["server_msg_id"])
	require.Equal(t, "sent", o.Message(id).State)
	require.Empty(t, o.Admin.Get("/api/v1/messages/stuck?kind=sending").Data("items"))
	cluster.StoredMessages(o, 5)

	points, effects := cluster.NewPointsService(o)
	cluster.Consume(o, points, jetstream.DeliverNewPolicy)
	require.Equal(t, 200, o.Admin.Post("/api/v1/messages/"+id+"/redrive", "").Status)
	received := o.WaitMessage(id, "received")
	require.Equal(t, 2, received.Epoch)
	require.Equal(t, "points", received.FinishedBy)
	require.Empty(t, stuck())
	require.Regexp(t, id+`\.[0-9a-f]{8}\.2\.1$`, cluster.StoredMessages(o, 6)[5].Header.Get("Nats-Msg-Id"), "a redrive uses new Nats-Msg-Ids")

	fromStart := cluster.Consume(o, points, jetstream.DeliverAllPolicy)
	cluster.Eventually(t, func() bool {
		info, err := fromStart.Info(t.Context())
		return err == nil && info.AckFloor.Stream == 6
	}, "the earlier sends are received too")
	require.Equal(t, 1, effects())
	require.Equal(t, received, o.Message(id))
}
