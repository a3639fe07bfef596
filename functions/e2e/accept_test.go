package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// tellOfAccepting meets the answers of a service that accepts before it saves.
func (s story) tellOfAccepting() {
	s.t.Helper()
	other, _ := s.host.serveWithNATS(s.t)
	a := story{other, s.witness}
	accepted := a.post(202, post, `{"client_msg_id":"c-1","to":"user:bob","data":"hi","ack":"accepted"}`)
	require.Equal(s.t, "accepted", accepted.data("ack"))
	require.Equal(s.t, "process", accepted.data("durability"))
	require.Equal(s.t, "true", a.post(202, post, `{"client_msg_id":"c-1","to":"user:bob","data":"hi","ack":"accepted"}`).header.Get("Idempotency-Replayed"))
	a.post(422, post, `{"client_msg_id":"c-1","to":"user:bob","data":"ho","ack":"accepted"}`)
	require.Equal(s.t, "accepted", a.get(200, accepted.header.Get("Location")).data("state"))
	require.Equal(s.t, "accepted", a.get(200, post+"/by-key/c-1").data("state"))
}

// twoPhase is a town that accepts before it saves; its trigger is started by the
// test.
func twoPhase(t *testing.T, more ...string) *town {
	t.Helper()
	w := &town{t: t, bin: binary(t)}
	w.options = sandbox.NATSOptions{Dir: t.TempDir()}
	w.nats = natsIn(t, w.options)
	w.options.Port = w.nats.Port()
	w.url = sandbox.NewDatabase(t)
	w.env = settings(w.url, append([]string{"NATS_URL=" + w.nats.URL(), "SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true"}, more...)...)
	w.restart()
	w.ensure()
	return w
}

// restart starts the functions, on another port.
func (w *town) restart() {
	w.t.Helper()
	w.process = startProcess(w.t, w.bin, w.env)
	w.at = address(w.t, w.process)
	w.client = api.NewClient(w.at, "admin", "secret")
	w.looker = (&server{t: w.t, url: w.at, user: "admin", password: "secret"}).connect(w.url)
}

// ensure makes the streams, as any trigger does.
func (w *town) ensure() {
	w.t.Helper()
	p := startProcess(w.t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL=http://127.0.0.1:1"), "trigger")
	js := w.jetStream()
	require.Eventually(w.t, func() bool {
		_, err := js.Stream(w.t.Context(), "ACCEPTED")
		return err == nil
	}, waitLimit, 5*time.Millisecond)
	_, err := p.Terminate(20 * time.Second)
	require.NoError(w.t, err)
}

func (w *town) jetStream() jetstream.JetStream {
	w.t.Helper()
	nc, err := nats.Connect(w.nats.URL())
	require.NoError(w.t, err)
	w.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(w.t, err)
	return js
}

// accept hands over a message to bob and demands an acknowledgement.
func (w *town) accept(key, data string) api.MessageAck {
	w.t.Helper()
	ack, err := w.client.SubmitMessage(w.t.Context(), api.MessageRequest{ClientMsgID: key, To: "user:bob", Data: api.JSON(data), Ack: "accepted"})
	require.NoError(w.t, err)
	return ack
}

func (w *town) townState(id string) string {
	w.t.Helper()
	m, err := w.client.Message(w.t.Context(), id)
	require.NoError(w.t, err)
	return m.State
}

func (w *town) saved() int { return w.looker.count(`select count(*) from messages`) }

// inbox gives the events in a user's inbox.
func (w *town) inbox(user string) (events []*jetstream.RawStreamMsg) {
	w.t.Helper()
	stream, err := w.jetStream().Stream(w.t.Context(), "USERS")
	require.NoError(w.t, err)
	info, err := stream.Info(w.t.Context())
	require.NoError(w.t, err)
	for seq := max(info.State.FirstSeq, 1); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(w.t.Context(), seq)
		require.NoError(w.t, err)
		if m.Subject == "inbox."+user {
			events = append(events, m)
		}
	}
	return events
}

// lateAcks gives what the sender was told later, once that is about n messages.
func lateAcks(w *town, n int) map[string]api.LateAck {
	w.t.Helper()
	acks := map[string]api.LateAck{}
	require.Eventually(w.t, func() bool {
		for _, m := range w.inbox("admin") {
			var ack api.LateAck
			require.NoError(w.t, json.Unmarshal(m.Data, &ack))
			acks[ack.ServerMsgID] = ack
		}
		return len(acks) == n
	}, waitLimit, 10*time.Millisecond)
	return acks
}

func TestAnAcceptedMessageIsSavedAndSentAndItsSenderIsTold(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	first, second := w.accept("c-1", `"one"`), w.accept("c-2", `"two"`)
	require.Equal(t, "accepted", first.Ack)
	require.Less(t, first.AcceptSeq, second.AcceptSeq)
	require.Equal(t, "accepted", w.townState(first.ServerMsgID))
	require.Zero(t, w.saved(), "nothing is in Postgres yet")
	require.Equal(t, first, w.accept("c-1", `"one"`), "a repeat")
	require.Equal(t, 422, w.looker.post(post, `{"client_msg_id":"c-1","to":"user:bob","data":"other","ack":"accepted"}`).status)

	w.trigger(w.at)
	require.Eventually(t, func() bool { return len(w.inbox("bob")) == 2 && len(w.inbox("admin")) == 2 }, waitLimit, 10*time.Millisecond)
	require.Eventually(t, func() bool { return w.townState(first.ServerMsgID) == "sent" }, waitLimit, 10*time.Millisecond, "committed after bob has it")
	for i, m := range w.inbox("bob") {
		require.Equal(t, []string{`"one"`, `"two"`}[i], string(m.Data), "in the order of the sender")
	}
	for i, m := range w.inbox("admin") {
		require.Equal(t, "sendonce.ack.saved.v1", m.Header.Get("ce-type"))
		var ack api.LateAck
		require.NoError(t, json.Unmarshal(m.Data, &ack))
		require.Equal(t, []api.MessageAck{first, second}[i].ServerMsgID, ack.ServerMsgID)
		require.Equal(t, "saved", ack.AckType)
		require.Positive(t, ack.AcceptSeq)
	}
}

func TestAMessageThatWasSavedFirstMakesALaterOneARepeatOrARejection(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	for _, key := range []string{"same", "other"} {
		saved, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: key, To: "user:bob", Data: api.JSON(`1`)})
		require.NoError(t, err)
		require.Equal(t, "saved", saved.Ack)
	}
	same, other := w.accept("same", `1`), w.accept("other", `2`)
	w.trigger(w.at)
	acks := lateAcks(w, 2)
	require.Equal(t, "saved", acks[same.ServerMsgID].AckType)
	require.Equal(t, "rejected", acks[other.ServerMsgID].AckType)
	require.Equal(t, other.AcceptSeq, acks[other.ServerMsgID].AcceptSeq, "of the one that was accepted")
	require.Equal(t, 2, w.saved())
	require.NotContains(t, w.looker.get("/api/v1/admin/dead-letters").text, other.ServerMsgID)
	require.Len(t, w.inbox("bob"), 2, "each was sent once, as it was saved first")
}

func TestTheSenderOfAMessageThatCannotBeSavedIsTold(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	w.looker.exec(`alter table messages add check (client_msg_id <> 'bad')`)
	before, bad, after := w.accept("before", `1`), w.accept("bad", `1`), w.accept("after", `1`)
	w.trigger(w.at)
	acks := lateAcks(w, 3)
	require.Equal(t, "saved", acks[before.ServerMsgID].AckType)
	require.Equal(t, "saved", acks[after.ServerMsgID].AckType)
	require.Equal(t, api.LateAck{
		AckType: "rejected", From: "admin", ClientMsgID: "bad", ServerMsgID: bad.ServerMsgID, AcceptSeq: bad.AcceptSeq, SavedAt: acks[bad.ServerMsgID].SavedAt,
	}, acks[bad.ServerMsgID])
	require.Contains(t, w.looker.get("/api/v1/admin/dead-letters").text, bad.ServerMsgID)
	text, err := runDrain(w)
	require.NoError(t, err)
	require.Contains(t, text, "1 accepted messages could not be saved")
	w.looker.exec(`update accepted_messages set saved_at = now() - interval '25 hours'`)
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_messages`) == 0 }, waitLimit, 10*time.Millisecond, "all three are forgotten")
	require.Equal(t, 404, w.looker.get(post+"/"+bad.ServerMsgID).status)
}

func TestARepeatOfAnAcceptedMessageIsOneThoughItsWordsWereBlockedSince(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	first := w.accept("c-1", `"a casino"`)
	require.Equal(t, 200, w.looker.post("/api/v1/admin/blocked-words", `{"word":"casino"}`).status)
	require.Equal(t, first, w.accept("c-1", `"a casino"`))
	answer := func(key, data string) (int, any) {
		r := w.looker.post(post, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":%q,"ack":"accepted"}`, key, data))
		return r.status, r.body["error"]
	}
	status, word := answer("c-1", "another casino")
	require.Equal(t, []any{422, "idempotency_key_reused"}, []any{status, word})
	status, word = answer("c-2", "a casino")
	require.Equal(t, []any{400, "content_blocked"}, []any{status, word})
	require.NoError(t, w.nats.Stop())
	status, _ = answer("c-1", "a casino")
	require.Equal(t, 503, status, "nobody can say that it was never accepted")
}

// TestWhatWasTakenAndIsNotSavedIsFound has a consumer say that a message was
// taken which nobody ever saw, in a stream that was made anew.
func TestWhatWasTakenAndIsNotSavedIsFound(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	trigger := startProcess(t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+w.at), "trigger")
	for i := range 5 {
		w.accept(fmt.Sprint("old-", i), `1`)
	}
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_checked where accept_seq = 5`) == 1 }, waitLimit, 10*time.Millisecond)
	require.NoError(t, trigger.Kill())
	js := w.jetStream()
	require.NoError(t, js.DeleteStream(t.Context(), "ACCEPTED"))
	w.ensure()
	if err := js.DeleteConsumer(t.Context(), "ACCEPTED", "save-1-of-1"); err != nil {
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	}
	lost := w.accept("lost", `1`)
	require.EqualValues(t, 1, lost.AcceptSeq, "a place that another stream had")
	strange := nats.NewMsg("acc.0.strange")
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "strange", "ce-source": "/x", "ce-type": "x"} {
		strange.Header.Set(name, value)
	}
	_, err := js.PublishMsg(t.Context(), strange)
	require.NoError(t, err)
	_, err = js.CreateConsumer(t.Context(), "ACCEPTED", jetstream.ConsumerConfig{Durable: "save-1-of-1", DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	require.Equal(t, 204, w.looker.tick("save").status)
	require.Equal(t, 6, w.saved())
	require.NotEqual(t, "accepted", w.townState(lost.ServerMsgID))
	require.Equal(t, 1, w.looker.count(`select count(*) from dead_letters where function = 'save' and event_id = 'strange'`))
	require.Equal(t, 1, w.looker.count(`select count(*) from accepted_messages`), "what is known of the other stream is forgotten")
}

func TestWithTheStreamAwayMessagesAreSavedAtOnceOrRefused(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprint("fail open ", open), func(t *testing.T) {
			t.Parallel()
			w := twoPhase(t, fmt.Sprint("TWO_PHASE_FAIL_OPEN=", open))
			before := w.accept("before", `0`)
			require.NoError(t, w.nats.Stop())
			require.Equal(t, 503, w.looker.get(post+"/"+before.ServerMsgID).status, "nobody can say that it was never accepted")
			answer := w.looker.post(post, `{"client_msg_id":"away","to":"user:bob","data":1,"ack":"accepted"}`)
			if !open {
				require.Equal(t, 503, answer.status, answer.text)
				require.NotEmpty(t, answer.header.Get("Retry-After"))
				require.Zero(t, w.saved())
				return
			}
			require.Equal(t, 200, answer.status, answer.text)
			require.Equal(t, "saved", answer.data("ack"))
			require.Equal(t, "best-effort", answer.data("ordering"))
			require.Equal(t, 1, w.saved())
		})
	}
}

func TestSwitchedOffAMessageThatAsksForAcceptedIsSaved(t *testing.T) {
	t.Parallel()
	s := serve(t)
	saved := s.post(post, `{"client_msg_id":"a","to":"user:bob","data":1,"ack":"saved"}`)
	asked := s.post(post, `{"client_msg_id":"b","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, 200, asked.status)
	cut := func(r reply) string {
		text := strings.ReplaceAll(r.text, r.data("server_msg_id").(string), "ID")
		return strings.ReplaceAll(text, fmt.Sprintf("%q", r.data("client_msg_id")), "KEY")
	}
	require.Equal(t, cut(saved), cut(asked), "byte for byte")
}

func TestARepeatMeetsItsMessageWhateverTheDefaultAcknowledgementIsByThen(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	submit := func(key, more string, status int) string {
		t.Helper()
		got := w.looker.post(post, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":1%s}`, key, more))
		require.Equal(t, status, got.status, got.text)
		return got.data("server_msg_id").(string)
	}
	turn := func(ack string) {
		t.Helper()
		w.env = append(w.env, "TWO_PHASE_DEFAULT_ACK="+ack)
		_, err := w.process.Terminate(waitLimit)
		require.NoError(t, err)
		w.restart()
	}
	saved := submit("saved-first", "", 200)
	turn("accepted")
	require.Equal(t, saved, submit("saved-first", "", 202))
	require.Equal(t, saved, submit("saved-first", `,"ack":"saved"`, 200), "an explicit ack counts")
	accepted := submit("accepted-first", "", 202)
	require.Equal(t, accepted, submit("accepted-first", `,"ack":"accepted"`, 202), "the same as without")
	explicit := submit("explicit", `,"ack":"saved"`, 200)
	require.Equal(t, 2, w.saved(), "what is only accepted is no row yet")
	turn("saved")
	require.Equal(t, accepted, submit("accepted-first", "", 200))
	require.Equal(t, saved, submit("saved-first", "", 200))
	require.Equal(t, explicit, submit("explicit", "", 200))
	require.Equal(t, 422, w.looker.post(post, `{"client_msg_id":"accepted-first","to":"user:bob","data":2}`).status, "another message is still another one")

	w.trigger(w.at)
	for _, ack := range lateAcks(w, 2) { // of what was accepted once
		require.Equal(t, "saved", ack.AckType)
	}
	require.Equal(t, 3, w.saved())
	require.Eventually(t, func() bool { return len(w.inbox("bob")) == 3 }, waitLimit, 10*time.Millisecond, "each is sent once")
}

func TestAStalledDatabaseIsNotNoticedByWhoeverIsAccepted(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	w := &town{t: t, nats: newNATS(t), url: proxy.URL(), bin: binary(t)}
	w.env = settings(w.url, "NATS_URL="+w.nats.URL(), "SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true")
	w.restart()
	w.trigger(w.at)
	w.accept("first", `0`)
	require.Eventually(t, func() bool { return w.saved() == 1 }, waitLimit, 5*time.Millisecond)
	proxy.Stall()
	const n = 50
	for i := range n {
		require.Equal(t, "accepted", w.accept(fmt.Sprint("stalled-", i), `1`).Ack)
	}
	proxy.Resume()
	require.Eventually(t, func() bool { return w.saved() == n+1 }, waitLimit, 10*time.Millisecond, "all are saved once it answers")
}

func TestEveryAcceptedMessageIsSavedWhateverIsKilled(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	trigger := startProcess(t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+w.at), "trigger")
	var mu sync.Mutex
	accepted := map[string]int64{} // by id, its place
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	client := w.client
	for s := range 4 {
		senders.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				ack, err := client.SubmitMessage(ctx, api.MessageRequest{From: fmt.Sprint("sender-", s), ClientMsgID: fmt.Sprint(i), To: "user:bob", Data: api.JSON(`1`), Ack: "accepted"})
				if err == nil {
					mu.Lock()
					accepted[ack.ServerMsgID] = ack.AcceptSeq
					mu.Unlock()
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(accepted) }
	until := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return count() >= n }, waitLimit, time.Millisecond)
	}
	until(200)
	require.NoError(t, trigger.Kill()) // with batches under way
	until(count() + 200)
	startProcess(t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+w.at), "trigger")
	until(count() + 200)
	require.NoError(t, w.process.Kill()) // whoever accepts and whoever saves
	stop()
	senders.Wait()
	w.restart()
	w.trigger(w.at)
	total := count()
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_messages`) >= total }, waitLimit, 20*time.Millisecond)
	for id := range accepted {
		require.Equal(t, 1, w.looker.count(`select count(*) from messages where id = $1`, id), id)
	}
	require.Zero(t, w.looker.count(`select count(*) from messages a join messages b on a.sender = b.sender
		and a.accept_seq < b.accept_seq and a.client_msg_id::integer > b.client_msg_id::integer`), "a sender's order is that of the stream")
}

func TestDrainWaitsUntilEverythingAcceptedIsSaved(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	trigger := startProcess(t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+w.at), "trigger")
	w.accept("first", `0`)
	require.Eventually(t, func() bool { return w.saved() == 1 }, waitLimit, 5*time.Millisecond)
	require.NoError(t, trigger.Kill())
	for i := range 5 {
		w.accept(fmt.Sprint(i), `1`)
	}
	drain := startProcess(t, w.bin, w.env, "drain")
	require.NoError(t, drain.WaitFor(t.Context(), "5 accepted messages are not saved"))
	w.trigger(w.at)
	exited(t, drain)
	require.Zero(t, drain.ExitCode(), drain.Output())
	require.Contains(t, drain.Output(), "0 accepted messages are not saved")
	require.Equal(t, 6, w.saved())

	again := exec.CommandContext(t.Context(), w.bin, "drain")
	again.Env = asComponent(t, w.env, "drain")
	text, err := again.CombinedOutput()
	require.NoError(t, err, string(text))
}

func TestWhatWasSavedLongAgoIsForgottenAndARepeatIsStillOne(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	w.trigger(w.at)
	first := w.accept("c-1", `1`)
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_messages`) == 1 }, waitLimit, 5*time.Millisecond)
	// What seems saved before the stream was made is taken for another stream's, by the first look.
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_checked`) == 1 }, waitLimit, 10*time.Millisecond)
	w.looker.exec(`update accepted_messages set saved_at = now() - interval '25 hours'`)
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_messages`) == 0 }, waitLimit, 10*time.Millisecond, "by the tick")
	stream, err := w.jetStream().Stream(t.Context(), "ACCEPTED")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)

	again := w.accept("c-1", `1`)
	require.Equal(t, first.ServerMsgID, again.ServerMsgID)
	require.Greater(t, again.AcceptSeq, first.AcceptSeq, "the stream knows nothing of it any more")
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from accepted_messages`) == 1 }, waitLimit, 5*time.Millisecond)
	require.Equal(t, 1, w.saved(), "the primary key does")
	require.Len(t, w.inbox("bob"), 1)
}
