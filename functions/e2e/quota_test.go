package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// submit sends a message to an address with a new client_msg_id.
func sendTo(s *cluster.Client, key int, to, data string) cluster.Reply {
	return s.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":"m-%d","to":%q,"data":%q}`, key, to, data))
}

func TestMessageQuotaAnswersRetryAfter(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("SENDONCE_CALLER_WAITING_MESSAGES=5")
	s, p := o.Admin, o.Process(cluster.All)
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	for n := range 5 {
		require.Equal(t, 200, sendTo(greedy, n, "msg.orders.paid", "x").Status, "to a subject whose messages nobody confirms")
	}
	refused := sendTo(greedy, 5, "msg.orders.paid", "x")
	require.Equal(t, http.StatusTooManyRequests, refused.Status, refused.Text)
	require.Equal(t, "quota_exceeded", refused.Body["error"])
	require.Equal(t, "5", refused.Header.Get("Retry-After"))
	require.Contains(t, refused.Body["message"], "this caller has 5 messages with 15 bytes waiting")
	again := sendTo(greedy, 4, "msg.orders.paid", "x")
	require.Equal(t, []any{200, "true"}, []any{again.Status, again.Header.Get("Idempotency-Replayed")}, "a repeat gets its answer")
	require.Equal(t, 422, sendTo(greedy, 4, "msg.orders.paid", "y").Status)

	socket := cluster.OpenSocket(greedy, "greedy", nil)
	socket.Send(cluster.TextMessage("frame", "user:bob", `1`))
	frame := socket.Refusal()
	require.Equal(t, []any{429, "quota_exceeded", 5, "frame"}, []any{frame.Code, frame.Error, frame.RetryAfterSeconds, frame.ClientMsgID})
	require.Equal(t, 200, sendTo(modest, 0, "msg.orders.paid", "x").Status)

	require.NoError(t, p.Kill())
	o.StartAll("SENDONCE_CALLER_WAITING_MESSAGES=5")
	s = o.Admin
	greedy.URL, modest.URL = s.URL, s.URL
	require.Equal(t, 429, sendTo(greedy, 5, "msg.orders.paid", "x").Status, "the database knows what waits")
	require.Equal(t, 200, sendTo(modest, 1, "msg.orders.paid", "x").Status)

	at := fmt.Sprintf("/api/v1/admin/callers/%d", o.Admin.Count(`select id from callers where name = 'greedy'`))
	require.EqualValues(t, 6, s.Do("PUT", at, `{"max_waiting_messages":6}`).Data("max_waiting_messages"))
	require.Equal(t, 200, sendTo(greedy, 5, "msg.orders.paid", "x").Status)
	require.Equal(t, 429, sendTo(greedy, 6, "msg.orders.paid", "x").Status)
	require.Nil(t, s.Do("PUT", at, `{"max_waiting_messages":0,"max_waiting_bytes":10000}`).Data("max_waiting_messages"), "what the settings say")
	require.Equal(t, []string{"max_waiting_messages", "max_waiting_bytes"}, s.Do("PUT", at, `{"max_waiting_messages":-1,"max_waiting_bytes":-1}`).Fields())
	require.Equal(t, 429, sendTo(greedy, 6, "msg.orders.paid", "x").Status)
	for n := range 2 {
		id := sendTo(greedy, n, "msg.orders.paid", "x").Data("server_msg_id")
		require.Equal(t, 200, s.Post(fmt.Sprint(cluster.MessagesPath, "/", id, "/abandon"), `{"reason":"x"}`).Status)
	}
	cluster.Eventually(t, func() bool { return sendTo(greedy, 6, "msg.orders.paid", "x").Status == 200 }, "there is room again")
}

// One submitter fills the stream of accepted messages with some that are rejected.
// Those of another are accepted all the same, long before the next tick.
func TestRejectedMessagesDoNotFillTheStream(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "SENDONCE_STREAM_ACCEPTED_MB=1", "TWO_PHASE_FAIL_OPEN=false", "SENDONCE_SAFETY_TICK=10m")
	greedy, modest := w.Admin.NewCaller("greedy", "submitter"), w.Admin.NewCaller("modest", "submitter")
	const accept = `{"client_msg_id":"m-%d","to":"user:bob","data":%q,"ack":"accepted"}`
	large := strings.Repeat("x", 60_000)
	n := 0
	for status := 202; status == 202; n++ { // nothing saves them yet, so the stream fills
		require.Equal(t, 200, sendTo(greedy, n, "user:bob", "x").Status)
		status = greedy.Post(cluster.MessagesPath, fmt.Sprintf(accept, n, large)).Status
	}
	require.Equal(t, 503, modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, 0, large)).Status, "it is full")
	w.StartTrigger(w.Client.BaseURL)
	cluster.Eventually(t, func() bool { return modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, 0, large)).Status == 202 })
	for m := 1; m < 40; m++ { // more than the stream holds
		cluster.Eventually(t, func() bool { return modest.Post(cluster.MessagesPath, fmt.Sprintf(accept, m, "x")).Status == 202 })
		require.Equal(t, 200, sendTo(greedy, n+m, "user:bob", "x").Status)
		if r := greedy.Post(cluster.MessagesPath, fmt.Sprintf(accept, n+m, large)); r.Status == 429 {
			break // it has more than its share
		}
	}
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
}

// One submitter has far more waiting than the relay takes at once. The messages of
// another go on as if it were alone.
func TestFloodOfOneCallerDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("SENDONCE_CALLER_WAITING_MB=0", "SENDONCE_CALLER_WAITING_MESSAGES=0")
	s := o.Admin
	modest := s.NewCaller("modest", "submitter")
	first := sendTo(modest, 0, "user:bob", "x").Data("server_msg_id").(string)
	o.WaitMessage(first, "sent")
	const flood = 30_000
	o.Admin.Exec(`set session_replication_role = replica`)
	o.Admin.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 999, 'greedy', g::text, 2, 'zoe' || g % 10000, 'x', '1', false, 1, 1 from generate_series(1, $1) g
			returning id
		)
		insert into message_live (id, caller_id, kind, stream, remaining_sends) select id, 999, 2, 'USERS', 1 from m`, flood)
	var took []time.Duration
	for n := range 10 {
		began := time.Now()
		sent := sendTo(modest, n+1, "user:bob", "x")
		require.Equal(t, 200, sent.Status)
		o.WaitMessage(sent.Data("server_msg_id").(string), "sent")
		took = append(took, time.Since(began))
	}
	left := o.Admin.Count(`select count(*) from message_live where caller_id = 999`)
	slices.Sort(took)
	t.Logf("10 messages beside %d of another caller: median %v, slowest %v; %d of the others still wait",
		flood, took[5].Round(time.Millisecond), took[9].Round(time.Millisecond), left)
	require.Positive(t, left, "else it was no flood")
}

// A stream that one caller alone fills takes the messages of others all the time.
func TestOneCallerCannotFillInboxStream(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_STREAM_USERS_MB=4") // of the trigger too, which makes the stream
	o.StartAll()
	s := o.Admin
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	large := strings.Repeat("x", 60_000)
	inbox := cluster.OpenStream(s, cluster.StreamsPath+"bob")
	refused := 0
	for n := range 300 { // 18 MB to as many inboxes
		r := sendTo(greedy, n, fmt.Sprint("user:zoe-", n), large)
		if r.Status == 200 {
			o.WaitMessage(r.Data("server_msg_id").(string), "sent") // the relay keeps up
			continue
		}
		require.Equal(t, 429, r.Status, r.Text)
		require.Equal(t, "60", r.Header.Get("Retry-After"))
		if refused++; refused == 3 {
			break
		}
	}
	require.Equal(t, 3, refused)
	for n := range 5 {
		sent := sendTo(modest, n, "user:bob", "x")
		require.Equal(t, 200, sent.Status, sent.Text)
		require.Equal(t, sent.Data("server_msg_id"), inbox.NextMessage())
	}
	require.Zero(t, o.Admin.Count(`select count(*) from stream_pauses`), "it was never full")
}

// A user whose inbox was flooded while it was away learns that something may be
// missing, and where it is.
func TestStreamReportsAGap(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_INBOX_MESSAGES=100") // of the trigger too, which makes the stream
	o.StartAll()
	s := o.Admin
	first := o.Save("user:bob")
	o.WaitMessage(first, "sent")
	inbox := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0")
	require.Equal(t, first, inbox.NextMessage())
	last := inbox.Last
	inbox.Close()
	for range 150 {
		o.Save("user:bob")
	}
	ann := o.Save("user:ann")
	cluster.WaitAllSent(o, func() {})
	require.Equal(t, 101, o.MessagesIn("USERS"))
	again := cluster.OpenStream(s, cluster.StreamsPath+"bob", "Last-Event-ID", last)
	gap := again.Event()
	require.Equal(t, "gap", gap.Kind)
	data := cluster.DecodeStrictly[api.StreamGapData](t, []byte(gap.Data))
	require.Equal(t, last, fmt.Sprint(data.After))
	require.Equal(t, gap.ID, fmt.Sprint(data.Next-1))
	require.Contains(t, data.Message, "GET /api/v1/messages?between=")
	for range 100 {
		again.NextMessage()
	}
	require.Equal(t, ann, cluster.OpenStream(s, cluster.StreamsPath+"ann?after=0").NextMessage(), "others miss nothing")
	fresh := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0").Event()
	require.Equal(t, []string{"gap", gap.ID}, []string{fresh.Kind, fresh.ID}, "a reader from the beginning gets it too")
}

// One sender floods an inbox. What others sent to it stays, and they send on.
func TestOneSenderEmptiesNoInbox(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_INBOX_MESSAGES=100")
	o.StartAll()
	s := o.Admin
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	first := sendTo(modest, 0, "user:vic", "important").Data("server_msg_id")
	refused := 0
	for n := range 110 {
		r := sendTo(greedy, n, "user:vic", "x")
		if r.Status == 429 {
			require.Equal(t, []any{"quota_exceeded", "60"}, []any{r.Body["error"], r.Header.Get("Retry-After")})
			refused++
		}
	}
	require.InDelta(t, 85, refused, 1)
	again := sendTo(greedy, 0, "user:vic", "x")
	require.Equal(t, []any{200, "true"}, []any{again.Status, again.Header.Get("Idempotency-Replayed")}, "a repeat gets its answer")
	require.Equal(t, 200, sendTo(greedy, 200, "user:zoe", "x").Status)
	require.Equal(t, 200, sendTo(modest, 1, "user:vic", "x").Status)
	cluster.WaitAllSent(o, func() {})
	require.Equal(t, first, cluster.OpenStream(s, cluster.StreamsPath+"vic?after=0").NextMessage())
}
