package save_test

import (
	"encoding/json"
	"fmt"
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
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// lateAcks waits for n late acknowledgements in the sender's inbox, and returns them by message id.
func lateAcks(w *cluster.Cluster, n int) map[string]api.LateAck {
	w.T.Helper()
	acks := map[string]api.LateAck{}
	cluster.Eventually(w.T, func() bool {
		for _, m := range w.Inbox("admin") {
			var ack api.LateAck
			require.NoError(w.T, json.Unmarshal(m.Data, &ack))
			acks[ack.ServerMsgID] = ack
		}
		return len(acks) == n
	})
	return acks
}

// A message is accepted, saved, sent to its user and acknowledged again; a message that
// cannot be saved is rejected. After the rows of accepted_messages are purged, a repeat is
// found by the primary key of the message.
func TestAcceptedMessagesAreSavedSentAndPurged(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	w.Admin.Exec(`alter table messages add check (client_msg_id <> 'bad')`)
	first, bad, second := w.Accept("c-1", `"one"`), w.Accept("bad", `1`), w.Accept("c-2", `"two"`)
	require.Equal(t, "accepted", first.Ack)
	require.Less(t, first.AcceptSeq, second.AcceptSeq)
	require.Equal(t, "accepted", w.Message(first.ServerMsgID).State)
	require.Zero(t, w.SavedMessages(), "nothing is in Postgres yet")
	require.Equal(t, first, w.Accept("c-1", `"one"`), "a repeat gets the same acknowledgement")
	require.Equal(t, 422, w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"c-1","to":"user:bob","data":"other","ack":"accepted"}`).Status)

	w.StartTrigger(w.Client.BaseURL)
	acks := lateAcks(w, 3)
	for _, saved := range []api.MessageAck{first, second} {
		got := acks[saved.ServerMsgID]
		require.Equal(t, []any{"saved", saved.AcceptSeq}, []any{got.AckType, got.AcceptSeq})
	}
	require.Equal(t, api.LateAck{
		AckType: "rejected", From: "admin", ClientMsgID: "bad", ServerMsgID: bad.ServerMsgID, AcceptSeq: bad.AcceptSeq, SavedAt: acks[bad.ServerMsgID].SavedAt,
	}, acks[bad.ServerMsgID])
	require.Contains(t, w.Admin.Get("/api/v1/admin/dead-letters").Text, bad.ServerMsgID)
	sent := w.WaitMessage(second.ServerMsgID, "sent")
	require.NotEmpty(t, sent.Producer, "the process that accepted it")
	require.Equal(t, second.AcceptSeq, int64(sent.AcceptSeq))
	require.WithinDuration(t, time.Now(), *sent.AcceptedAt, time.Minute)
	require.WithinDuration(t, time.Now(), *sent.DeliveredAt, time.Minute)
	inbox := w.Inbox("bob")
	require.Len(t, inbox, 2)
	require.Equal(t, []string{`"one"`, `"two"`}, []string{string(inbox[0].Data), string(inbox[1].Data)}, "in the order in which the sender submitted them")
	drain := cluster.StartProcess(t, w.Bin, w.Env, "drain")
	cluster.WaitExit(t, drain)
	require.Zero(t, drain.ExitCode(), drain.Output())
	require.Contains(t, drain.Output(), "1 accepted messages could not be saved")

	// The first check of a stream deletes the rows that are older than the stream, because they belong to an earlier
	// stream. So the test waits for this check before it makes the rows older.
	w.Admin.WaitCount(1, `select count(*) from accepted_checked`)
	w.Admin.Exec(`update accepted_messages set saved_at = now() - interval '25 hours'`)
	cluster.Eventually(t, func() bool { return w.Admin.Count(`select count(*) from accepted_messages`) == 0 }, "the safety tick purges the rows")
	require.Equal(t, 404, w.Admin.Get(cluster.MessagesPath+"/"+bad.ServerMsgID).Status)
	repeat := w.Accept("c-1", `"one"`)
	require.Equal(t, first.ServerMsgID, repeat.ServerMsgID)
	require.Greater(t, repeat.AcceptSeq, second.AcceptSeq, "the first copy was purged from the stream")
	w.Admin.WaitCount(1, `select count(*) from accepted_messages`)
	require.Equal(t, 2, w.SavedMessages())
	require.Len(t, w.Inbox("bob"), 2)
}

func TestRepeatOfAcceptedMessageIgnoresNewBlockedWords(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	first := w.Accept("c-1", `"a casino"`)
	w.Admin.Post("/api/v1/admin/blocked-words", `{"word":"casino"}`).RequireOK()
	require.Equal(t, first, w.Accept("c-1", `"a casino"`))
	send := func(key, data string) (status int, code any) {
		r := w.Admin.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":%q,"ack":"accepted"}`, key, data))
		return r.Status, r.Body["error"]
	}
	status, code := send("c-1", "another casino")
	require.Equal(t, []any{422, "idempotency_key_reused"}, []any{status, code})
	status, code = send("c-2", "a casino")
	require.Equal(t, []any{400, "content_blocked"}, []any{status, code})

	require.NoError(t, w.NATS.Stop())
	status, _ = send("c-1", "a casino")
	require.Equal(t, 503, status, "without NATS it is unknown whether this message with a blocked word is a repeat")
	require.Equal(t, 503, w.Admin.Get(cluster.MessagesPath+"/"+first.ServerMsgID).Status)
	allowed := w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"away","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, []any{200, "saved", "best-effort"}, []any{allowed.Status, allowed.Data("ack"), allowed.Data("ordering")}, "without a blocked word it is saved at once: %s", allowed.Text)
	require.Equal(t, 1, w.SavedMessages())
}

// skipAll makes the consumer of save begin after all messages that are in the stream.
func skipAll(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if err := js.DeleteConsumer(t.Context(), "ACCEPTED", "save-1-of-1"); err != nil {
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	}
	_, err := js.CreateConsumer(t.Context(), "ACCEPTED", jetstream.ConsumerConfig{Durable: "save-1-of-1", DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
}

// The stream is deleted and created again. Then its consumer begins after messages that no
// function has received: they count as acknowledged, but are not saved.
func TestReconcileSavesMissingAcknowledgedMessages(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	trigger := w.StartTrigger(w.Client.BaseURL)
	for i := range 5 {
		w.Accept(fmt.Sprint("old-", i), `1`)
	}
	w.Admin.WaitCount(1, `select count(*) from accepted_checked where accept_seq = 5`)
	require.NoError(t, trigger.Kill())
	js := w.JetStream()
	require.NoError(t, js.DeleteStream(t.Context(), "ACCEPTED"))
	w.EnsureStreams()
	lost := w.Accept("lost", `1`)
	require.EqualValues(t, 1, lost.AcceptSeq, "the deleted stream had this sequence number too")
	strange := nats.NewMsg("acc.0.strange")
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "strange", "ce-source": "/x", "ce-type": "x"} {
		strange.Header.Set(name, value)
	}
	_, err := js.PublishMsg(t.Context(), strange)
	require.NoError(t, err)
	skipAll(t, js)
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, 6, w.SavedMessages())
	require.NotEqual(t, "accepted", w.Message(lost.ServerMsgID).State)
	require.Equal(t, 1, w.Admin.Count(`select count(*) from dead_letters where function = 'save' and event_id = 'strange'`))
	require.Equal(t, 1, w.Admin.Count(`select count(*) from accepted_messages`), "only the row of the new message: the rows of the deleted stream are deleted")

	w.Admin.Exec(`update accepted_checked set accept_seq = 9e18`) // as a compromised function can
	w.Accept("lost-too", `1`)
	skipAll(t, js)
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, 7, w.SavedMessages())
	require.Equal(t, 3, w.Admin.Count(`select accept_seq from accepted_checked`))
}

// After a power loss NATS may have lost the end of the stream, whose messages were saved, and uses their sequence numbers again.
func TestDrainWaitsForMessageWithSequenceNumberOfLostOne(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	w.Admin.Exec(`insert into accepted_messages (accept_seq, id) values (1, gen_random_uuid())`)
	require.EqualValues(t, 1, w.Accept("new", `1`).AcceptSeq)
	drain := cluster.StartProcess(t, w.Bin, w.Env, "drain")
	require.NoError(t, drain.WaitFor(t.Context(), "1 accepted messages are not saved"))
	w.StartTrigger(w.Client.BaseURL)
	cluster.WaitExit(t, drain)
	require.Zero(t, drain.ExitCode(), drain.Output())
	require.Equal(t, 1, w.SavedMessages())
}

// Most functions may not publish to the stream. But each can send a request whose reply subject belongs to the stream: NATS then
// stores its response in the stream.
func TestResponsesOfNATSInTheStreamBecomeNoDeadLetters(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	nc := w.JetStream().Conn()
	const responses = 2000
	for n := range responses {
		require.NoError(t, nc.PublishRequest("wake.relay", fmt.Sprint("acc.0.r", n), nil))
	}
	cluster.Eventually(t, func() bool { return w.MessagesIn("ACCEPTED") == responses })
	w.Accept("k", `1`)
	w.StartTrigger(w.Client.BaseURL)
	cluster.Eventually(t, func() bool { return w.SavedMessages() == 1 })
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
}

func TestMessageIsSavedIfResponseOfNATSHasItsSubject(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_FAIL_OPEN=false")
	occupy := func(key string) string {
		id := task.ID(message.ID(0, "admin", key)).String()
		require.NoError(t, w.JetStream().Conn().PublishRequest("wake.relay", bus.AcceptSubject("admin", id), nil))
		return id
	}
	occupied, unknown := occupy("k"), occupy("unknown")
	cluster.Eventually(t, func() bool { return w.MessagesIn("ACCEPTED") == 2 })
	ack := w.Accept("k", `1`)
	require.Equal(t, []string{"saved", occupied}, []string{ack.Ack, ack.ServerMsgID})
	require.Equal(t, 404, w.Admin.Get(cluster.MessagesPath+"/"+unknown).Status)
}

// An attacker may write unreadable entries to the stream. If each were a tick, save would search for missing messages all the time.
func TestUnreadableEventIsNoTick(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	w.Accept("missing", `1`)
	skipAll(t, w.JetStream())
	header := slices.Concat(cluster.TickHeader[:len(cluster.TickHeader)-1], []string{bus.UnreadableType})
	require.Equal(t, 204, w.Admin.Do("POST", "/events/save", "", header...).Status)
	require.Zero(t, w.SavedMessages())
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, 1, w.SavedMessages())
}

// Entries of the stream that are not messages are removed after the deduplication window, which is 0 while the stream is nearly full.
func TestEntriesThatAreNotMessagesAreRemoved(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "SENDONCE_STREAM_ACCEPTED_MB=1")
	js := w.JetStream()
	strange := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"strange"}, "ce-source": {"/x"}, "ce-type": {"x"}}
	stored := 0
	for _, header := range []nats.Header{strange, nil, nil, nil} {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: fmt.Sprint("acc.0.", stored), Header: header, Data: []byte(`"` + strings.Repeat("x", 260_000) + `"`)})
		require.NoError(t, err)
		stored++
	}
	large := fmt.Sprintf("%q", strings.Repeat("x", 60_000))
	ack := func(key string) any {
		return w.Admin.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":%s,"ack":"accepted"}`, key, large)).Data("ack")
	}
	require.Equal(t, "saved", ack("full"), "the stream is full, so the message is saved at once")
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, stored, w.MessagesIn("ACCEPTED"), "entries that no consumer has acknowledged stay")

	w.StartTrigger(w.Client.BaseURL)
	n := 0
	cluster.Eventually(t, func() bool { n++; return ack(fmt.Sprint("again-", n)) == "accepted" }, "the stream has room again")
	require.Equal(t, 1, w.Admin.Count(`select count(*) from dead_letters where event_id = 'strange'`))
}

// NATS has lost the end of the stream, and the consumers do not deliver a new message, which has the sequence number of a lost one.
// The new message is saved after the deduplication window, which is 0 while the stream is nearly full.
func TestMessageWithSequenceNumberOfLostOneIsSaved(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "SENDONCE_STREAM_ACCEPTED_MB=1")
	js := w.JetStream()
	w.Admin.Exec(`insert into accepted_messages (accept_seq, id) values (1, gen_random_uuid())`)
	require.EqualValues(t, 1, w.Accept("new", `1`).AcceptSeq)
	for i := range 4 {
		_, err := js.Publish(t.Context(), fmt.Sprint("acc.0.", i), make([]byte, 250_000))
		require.NoError(t, err)
	}
	skipAll(t, js)
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, 1, w.SavedMessages())
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Equal(t, 1, w.SavedMessages())
	require.Equal(t, 1, w.Admin.Count(`select count(*) from accepted_messages where accept_seq = 1`), "the row of the new message; the row of the lost one was purged")
}

func TestAckAcceptedMeansSavedWhileTwoPhaseIsOff(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	saved := s.Post(cluster.MessagesPath, `{"client_msg_id":"a","to":"user:bob","data":1,"ack":"saved"}`)
	accepted := s.Post(cluster.MessagesPath, `{"client_msg_id":"b","to":"user:bob","data":1,"ack":"accepted"}`).RequireOK()
	withoutIDs := func(r cluster.Reply) string {
		text := strings.ReplaceAll(r.Text, r.Data("server_msg_id").(string), "ID")
		return strings.ReplaceAll(text, fmt.Sprintf("%q", r.Data("client_msg_id")), "KEY")
	}
	require.Equal(t, withoutIDs(saved), withoutIDs(accepted), "the responses are equal except for the ids")
}

func TestRepeatIsFoundAfterDefaultAckChanges(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	submit := func(key, more string, status int) string {
		t.Helper()
		got := w.Admin.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":1%s}`, key, more))
		require.Equal(t, status, got.Status, got.Text)
		return got.Data("server_msg_id").(string)
	}
	restartWithDefault := func(ack string) {
		t.Helper()
		w.Env = append(w.Env, "TWO_PHASE_DEFAULT_ACK="+ack)
		_, err := w.Process(cluster.All).Terminate(cluster.WaitLimit)
		require.NoError(t, err)
		w.StartWithoutTrigger()
	}
	saved := submit("saved-first", "", 200)
	restartWithDefault("accepted")
	require.Equal(t, saved, submit("saved-first", "", 202))
	require.Equal(t, saved, submit("saved-first", `,"ack":"saved"`, 200), "an ack in the request overrides the default")
	accepted := submit("accepted-first", "", 202)
	require.Equal(t, accepted, submit("accepted-first", `,"ack":"accepted"`, 202), "an ack equal to the default changes nothing")
	explicit := submit("explicit", `,"ack":"saved"`, 200)
	require.Equal(t, 2, w.SavedMessages(), "an accepted message has no row yet")
	restartWithDefault("saved")
	require.Equal(t, accepted, submit("accepted-first", "", 200))
	require.Equal(t, saved, submit("saved-first", "", 200))
	require.Equal(t, explicit, submit("explicit", "", 200))
	require.Equal(t, 422, w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"accepted-first","to":"user:bob","data":2}`).Status, "a repeat with other data is refused")

	w.StartTrigger(w.Client.BaseURL)
	for _, ack := range lateAcks(w, 2) { // of the messages that were accepted
		require.Equal(t, "saved", ack.AckType)
	}
	require.Equal(t, 3, w.SavedMessages())
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == 3 }, "each is sent once")
}

func TestAcceptDoesNotWaitForStalledDatabase(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	w := cluster.NewOn(t, proxy.URL(), "SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true")
	w.StartAll()
	w.Accept("first", `0`)
	cluster.Eventually(t, func() bool { return w.SavedMessages() == 1 })
	proxy.Stall()
	const n = 50
	for i := range n {
		require.Equal(t, "accepted", w.Accept(fmt.Sprint("stalled-", i), `1`).Ack)
	}
	proxy.Resume()
	cluster.Eventually(t, func() bool { return w.SavedMessages() == n+1 }, "all are saved once Postgres responds")
}

func TestReusedIDDoesNotReplaceSavedMessage(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	saved, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "x", To: "user:bob", Data: api.JSON(`"A"`)})
	require.NoError(t, err)
	require.Equal(t, "saved", saved.Ack)
	release := storetest.HoldLock(t, storetest.ConnectAsOwner(t, w.DatabaseURL), `select from message_live for update`) // now no relay sends the saved message
	require.Equal(t, saved.ServerMsgID, w.Accept("x", `"B"`).ServerMsgID)
	w.StartTrigger(w.Client.BaseURL)
	bodies := func() (all []string) {
		for _, m := range w.Inbox("bob") {
			all = append(all, string(m.Data))
		}
		return all
	}
	cluster.Eventually(t, func() bool { return len(bodies()) == 1 })
	require.Equal(t, []string{`"B"`}, bodies(), "delivered before save found that it cannot be saved")
	release()

	cluster.Eventually(t, func() bool { return w.Message(saved.ServerMsgID).State == "sent" })
	require.Equal(t, []string{`"B"`, `"A"`}, bodies(), "the saved message was delivered, too, when its state became sent")
	cluster.Eventually(t, func() bool { return len(w.Inbox("admin")) == 1 })
	var ack api.LateAck
	require.NoError(t, json.Unmarshal(w.Inbox("admin")[0].Data, &ack))
	require.Equal(t, "rejected", ack.AckType)
	require.Equal(t, saved.ServerMsgID, ack.ServerMsgID)
}

// One submitter fills the stream of accepted messages with messages that will be rejected. Messages of
// another submitter are accepted again long before the next tick.
func TestRejectedMessagesDoNotFillTheStream(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "SENDONCE_STREAM_ACCEPTED_MB=1", "TWO_PHASE_FAIL_OPEN=false", "SENDONCE_SAFETY_TICK=10m")
	greedy, modest := w.Admin.NewCaller("greedy", "submitter"), w.Admin.NewCaller("modest", "submitter")
	const accept = `{"client_msg_id":"m-%d","to":"user:bob","data":%q,"ack":"accepted"}`
	large := strings.Repeat("x", 60_000)
	n := 0
	for status := 202; status == 202; n++ { // nothing saves the messages yet, so they fill the stream
		// A message is saved under the key m-<n>. The large message is then accepted under the same key, and will be rejected.
		require.Equal(t, 200, cluster.SendTo(greedy, n, "user:bob", "x").Status)
		status = greedy.Post(cluster.MessagesPath, fmt.Sprintf(accept, n, large)).Status
	}
	require.Equal(t, 503, modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, 0, large)).Status, "the stream is full")
	w.StartTrigger(w.Client.BaseURL)
	cluster.Eventually(t, func() bool { return modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, 0, large)).Status == 202 })
	for m := 1; m < 40; m++ { // more than fit in the stream
		cluster.Eventually(t, func() bool { return modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, m, "x")).Status == 202 })
		require.Equal(t, 200, cluster.SendTo(greedy, n+m, "user:bob", "x").Status)
		if r := greedy.Post(cluster.MessagesPath, fmt.Sprintf(accept, n+m, large)); r.Status == 429 {
			break // greedy has used its share of the stream
		}
	}
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
}

func TestReconcileSavesUnacknowledgedAfterIdleTime(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	w := cluster.OpenTwoPhase(t)
	ack := w.Accept("lost", `1`)
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Zero(t, w.SavedMessages(), "a message that no consumer has acknowledged is saved only after idleTime")
	cluster.Eventually(t, func() bool { return w.Admin.Tick("save").Status == 204 && w.SavedMessages() == 1 })
	require.NotEqual(t, "accepted", w.Message(ack.ServerMsgID).State)
}
