package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// submit sends a message to an address with a new client_msg_id.
func sendTo(s *server, key int, to, data string) reply {
	return s.post(post, fmt.Sprintf(`{"client_msg_id":"m-%d","to":%q,"data":%q}`, key, to, data))
}

func TestACallerBeyondItsQuotaIsToldToWait(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, p := o.startAll("SENDONCE_CALLER_WAITING_MESSAGES=5")
	greedy, modest := s.caller("greedy", "submitter"), s.caller("modest", "submitter")
	for n := range 5 {
		require.Equal(t, 200, sendTo(greedy, n, "msg.orders.paid", "x").status, "to a subject whose messages nobody confirms")
	}
	refused := sendTo(greedy, 5, "msg.orders.paid", "x")
	require.Equal(t, http.StatusTooManyRequests, refused.status, refused.text)
	require.Equal(t, "quota_exceeded", refused.body["error"])
	require.Equal(t, "5", refused.header.Get("Retry-After"))
	require.Contains(t, refused.body["message"], "this caller has 5 messages with 15 bytes waiting")
	again := sendTo(greedy, 4, "msg.orders.paid", "x")
	require.Equal(t, []any{200, "true"}, []any{again.status, again.header.Get("Idempotency-Replayed")}, "a repeat gets its answer")
	require.Equal(t, 422, sendTo(greedy, 4, "msg.orders.paid", "y").status)

	socket := openSocket(greedy, "greedy", nil)
	socket.send(note("frame", "user:bob", `1`))
	frame := socket.refusal()
	require.Equal(t, []any{429, "quota_exceeded", 5, "frame"}, []any{frame.Code, frame.Error, frame.RetryAfterSeconds, frame.ClientMsgID})
	require.Equal(t, 200, sendTo(modest, 0, "msg.orders.paid", "x").status)

	require.NoError(t, p.Kill())
	s, _ = o.startAll("SENDONCE_CALLER_WAITING_MESSAGES=5")
	greedy.url, modest.url = s.url, s.url
	require.Equal(t, 429, sendTo(greedy, 5, "msg.orders.paid", "x").status, "the database knows what waits")
	require.Equal(t, 200, sendTo(modest, 1, "msg.orders.paid", "x").status)

	at := fmt.Sprintf("/api/v1/admin/callers/%d", o.looker.count(`select id from callers where name = 'greedy'`))
	require.EqualValues(t, 6, s.do("PUT", at, `{"max_waiting_messages":6}`).data("max_waiting_messages"))
	require.Equal(t, 200, sendTo(greedy, 5, "msg.orders.paid", "x").status)
	require.Equal(t, 429, sendTo(greedy, 6, "msg.orders.paid", "x").status)
	require.Nil(t, s.do("PUT", at, `{"max_waiting_messages":0,"max_waiting_bytes":10000}`).data("max_waiting_messages"), "what the settings say")
	require.Equal(t, []string{"max_waiting_messages", "max_waiting_bytes"}, s.do("PUT", at, `{"max_waiting_messages":-1,"max_waiting_bytes":-1}`).fields())
	require.Equal(t, 429, sendTo(greedy, 6, "msg.orders.paid", "x").status)
	for n := range 2 {
		id := sendTo(greedy, n, "msg.orders.paid", "x").data("server_msg_id")
		require.Equal(t, 200, s.post(fmt.Sprint(post, "/", id, "/abandon"), `{"reason":"x"}`).status)
	}
	require.Eventually(t, func() bool { return sendTo(greedy, 6, "msg.orders.paid", "x").status == 200 }, waitLimit, 20*time.Millisecond, "there is room again")
}

func TestAcceptedMessagesCountUntilTheyAreSaved(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "SENDONCE_CALLER_WAITING_MESSAGES=5", "TWO_PHASE_DEFAULT_ACK=accepted", "TWO_PHASE_FAIL_OPEN=false")
	greedy, modest := w.looker.caller("greedy", "submitter"), w.looker.caller("modest", "submitter")
	for n := range 5 {
		require.Equal(t, 202, sendTo(greedy, n, "user:bob", "x").status)
	}
	refused := sendTo(greedy, 5, "user:bob", "x")
	require.Equal(t, 429, refused.status, refused.text)
	again := sendTo(greedy, 4, "user:bob", "x")
	require.Equal(t, []any{202, "true"}, []any{again.status, again.header.Get("Idempotency-Replayed")}, "a repeat gets its answer")
	require.Equal(t, 202, sendTo(modest, 0, "user:bob", "x").status)

	w.trigger(w.at) // saves them
	require.Eventually(t, func() bool { return sendTo(greedy, 5, "user:bob", "x").status == 202 }, waitLimit, 20*time.Millisecond)
	require.Equal(t, 2, w.looker.count(`select count(distinct caller_id) from stream_usage where stream = 'ACCEPTED'`))
}

// One submitter fills the stream of accepted messages with some that are rejected.
// Those of another are accepted all the same, long before the next tick.
func TestRejectedMessagesKeepNobodyFromBeingAccepted(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "SENDONCE_STREAM_ACCEPTED_MB=1", "TWO_PHASE_FAIL_OPEN=false", "SENDONCE_SAFETY_TICK=10m")
	greedy, modest := w.looker.caller("greedy", "submitter"), w.looker.caller("modest", "submitter")
	const accept = `{"client_msg_id":"m-%d","to":"user:bob","data":%q,"ack":"accepted"}`
	large := strings.Repeat("x", 60_000)
	n := 0
	for status := 202; status == 202; n++ { // nothing saves them yet, so the stream fills
		require.Equal(t, 200, sendTo(greedy, n, "user:bob", "x").status)
		status = greedy.post(post, fmt.Sprintf(accept, n, large)).status
	}
	require.Equal(t, 503, modest.post(post, fmt.Sprintf(accept, 0, large)).status, "it is full")
	w.trigger(w.at)
	require.Eventually(t, func() bool { return modest.post(post, fmt.Sprintf(accept, 0, large)).status == 202 }, waitLimit, 20*time.Millisecond)
	for m := 1; m < 40; m++ { // more than the stream holds
		require.Eventually(t, func() bool { return modest.post(post, fmt.Sprintf(accept, m, "x")).status == 202 }, waitLimit, 20*time.Millisecond)
		require.Equal(t, 200, sendTo(greedy, n+m, "user:bob", "x").status)
		if r := greedy.post(post, fmt.Sprintf(accept, n+m, large)); r.status == 429 {
			break // it has more than its share
		}
	}
	require.Zero(t, w.looker.count(`select count(*) from dead_letters`))
}

// One submitter has far more waiting than the relay takes at once. The messages of
// another go on as if it were alone.
func TestAFloodOfOneCallerDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, _ := o.startAll("SENDONCE_CALLER_WAITING_MB=0", "SENDONCE_CALLER_WAITING_MESSAGES=0")
	modest := s.caller("modest", "submitter")
	first := sendTo(modest, 0, "user:bob", "x").data("server_msg_id").(string)
	o.until(first, "sent")
	const flood = 30_000
	o.looker.exec(`set session_replication_role = replica`)
	o.looker.exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 999, 'greedy', g::text, 2, 'zoe' || g % 10000, 'x', '1', false, 1, 1 from generate_series(1, $1) g
			returning id
		)
		insert into message_live (id, caller_id, kind, stream, remaining_sends) select id, 999, 2, 'USERS', 1 from m`, flood)
	var took []time.Duration
	for n := range 10 {
		began := time.Now()
		sent := sendTo(modest, n+1, "user:bob", "x")
		require.Equal(t, 200, sent.status)
		o.until(sent.data("server_msg_id").(string), "sent")
		took = append(took, time.Since(began))
	}
	left := o.looker.count(`select count(*) from message_live where caller_id = 999`)
	slices.Sort(took)
	t.Logf("10 messages beside %d of another caller: median %v, slowest %v; %d of the others still wait",
		flood, took[5].Round(time.Millisecond), took[9].Round(time.Millisecond), left)
	require.Positive(t, left, "else it was no flood")
}

// A stream that one caller alone fills takes the messages of others all the time.
func TestOneCallerMayNotFillTheStreamOfInboxes(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.env = append(o.env, "SENDONCE_STREAM_USERS_MB=4") // of the trigger too, which makes the stream
	s, _ := o.startAll()
	greedy, modest := s.caller("greedy", "submitter"), s.caller("modest", "submitter")
	large := strings.Repeat("x", 60_000)
	hears := listen(s, streams+"bob")
	refused := 0
	for n := range 300 { // 18 MB to as many inboxes
		r := sendTo(greedy, n, fmt.Sprint("user:zoe-", n), large)
		if r.status == 200 {
			o.until(r.data("server_msg_id").(string), "sent") // the relay keeps up
			continue
		}
		require.Equal(t, 429, r.status, r.text)
		require.Equal(t, "60", r.header.Get("Retry-After"))
		if refused++; refused == 3 {
			break
		}
	}
	require.Equal(t, 3, refused)
	for n := range 5 {
		sent := sendTo(modest, n, "user:bob", "x")
		require.Equal(t, 200, sent.status, sent.text)
		require.Equal(t, sent.data("server_msg_id"), hears.told())
	}
	require.Zero(t, o.looker.count(`select count(*) from stream_pauses`), "it was never full")
}

// A user whose inbox was flooded while it was away is told that something may be
// missing, and where it is.
func TestAStreamSaysThatThereIsAGap(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.env = append(o.env, "SENDONCE_INBOX_MESSAGES=100") // of the trigger too, which makes the stream
	s, _ := o.startAll()
	first := o.save("user:bob")
	o.until(first, "sent")
	hears := listen(s, streams+"bob?after=0")
	require.Equal(t, first, hears.told())
	last := hears.last
	hears.leave()
	for range 150 {
		o.save("user:bob")
	}
	ann := o.save("user:ann")
	waitAllSent(o, func() {})
	require.Equal(t, 101, messagesIn(o, "USERS"))
	again := listen(s, streams+"bob", "Last-Event-ID", last)
	gap := again.event()
	require.Equal(t, "gap", gap.kind)
	data := strictly[api.StreamGapData](t, []byte(gap.data))
	require.Equal(t, last, fmt.Sprint(data.After))
	require.Equal(t, gap.id, fmt.Sprint(data.Next-1))
	require.Contains(t, data.Message, "GET /api/v1/messages?between=")
	for range 100 {
		again.told()
	}
	require.Equal(t, ann, listen(s, streams+"ann?after=0").told(), "others miss nothing")
	fresh := listen(s, streams+"bob?after=0").event()
	require.Equal(t, []string{"gap", gap.id}, []string{fresh.kind, fresh.id}, "a reader from the beginning gets it too")
}

// One sender floods an inbox. What others sent to it stays, and they send on.
func TestOneSenderEmptiesNoInbox(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.env = append(o.env, "SENDONCE_INBOX_MESSAGES=100")
	s, _ := o.startAll()
	greedy, modest := s.caller("greedy", "submitter"), s.caller("modest", "submitter")
	first := sendTo(modest, 0, "user:vic", "important").data("server_msg_id")
	refused := 0
	for n := range 110 {
		r := sendTo(greedy, n, "user:vic", "x")
		if r.status == 429 {
			require.Equal(t, []any{"quota_exceeded", "60"}, []any{r.body["error"], r.header.Get("Retry-After")})
			refused++
		}
	}
	require.InDelta(t, 85, refused, 1)
	again := sendTo(greedy, 0, "user:vic", "x")
	require.Equal(t, []any{200, "true"}, []any{again.status, again.header.Get("Idempotency-Replayed")}, "a repeat gets its answer")
	require.Equal(t, 200, sendTo(greedy, 200, "user:zoe", "x").status)
	require.Equal(t, 200, sendTo(modest, 1, "user:vic", "x").status)
	waitAllSent(o, func() {})
	require.Equal(t, first, listen(s, streams+"vic?after=0").told())
}
