package messages_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestMessageOverQuotaIsRefusedWithRetryAfter(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("SENDONCE_CALLER_WAITING_MESSAGES=5")
	s := o.Admin
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	for n := range 5 {
		require.Equal(t, 200, cluster.SendTo(greedy, n, "msg.orders.paid", "x").Status, "messages to this subject wait: nobody confirms them")
	}
	refused := cluster.SendTo(greedy, 5, "msg.orders.paid", "x")
	require.Equal(t, http.StatusTooManyRequests, refused.Status, refused.Text)
	require.Equal(t, "quota_exceeded", refused.Body["error"])
	require.Equal(t, "5", refused.Header.Get("Retry-After"))
	require.Empty(t, refused.Fields(), "the quota is for all messages of the caller")
	require.Contains(t, refused.Body["message"], "this caller has 5 messages with 15 bytes waiting")
	again := cluster.SendTo(greedy, 4, "msg.orders.paid", "x")
	require.Equal(t, []any{200, "true"}, []any{again.Status, again.Header.Get("Idempotency-Replayed")}, "a repeat is not refused")
	require.Equal(t, 422, cluster.SendTo(greedy, 4, "msg.orders.paid", "y").Status)

	socket := cluster.OpenSocket(greedy, "greedy", nil)
	socket.Send(cluster.TextMessage("frame", "user:bob", `1`))
	frame := socket.Refusal()
	require.Equal(t, []any{429, "quota_exceeded", 5, "frame"}, []any{frame.Code, frame.Error, frame.RetryAfterSeconds, frame.ClientMsgID})
	require.Equal(t, 200, cluster.SendTo(modest, 0, "msg.orders.paid", "x").Status)

	at := s.CallerPath("greedy")
	require.EqualValues(t, 6, s.Do("PUT", at, `{"max_waiting_messages":6}`).Data("max_waiting_messages"))
	require.Equal(t, 200, cluster.SendTo(greedy, 5, "msg.orders.paid", "x").Status)
	require.Equal(t, 429, cluster.SendTo(greedy, 6, "msg.orders.paid", "x").Status)
	require.Nil(t, s.Do("PUT", at, `{"max_waiting_messages":0,"max_waiting_bytes":10000}`).Data("max_waiting_messages"), "0 removes the caller's own limit: the limit of the settings applies")
	require.Equal(t, []string{"max_waiting_messages", "max_waiting_bytes"}, s.Do("PUT", at, `{"max_waiting_messages":-1,"max_waiting_bytes":-1}`).Fields())
}

// One sender floods an inbox. The messages of other senders stay in the inbox, and other senders can send more.
func TestFloodedInboxKeepsMessagesOfOthers(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_INBOX_MESSAGES=100")
	o.StartAll()
	s := o.Admin
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	first := cluster.SendTo(modest, 0, "user:vic", "important").Data("server_msg_id")
	refused := 0
	for n := range 110 {
		r := cluster.SendTo(greedy, n, "user:vic", "x")
		if r.Status == 429 {
			require.Equal(t, []any{"quota_exceeded", "60"}, []any{r.Body["error"], r.Header.Get("Retry-After")})
			require.Equal(t, []string{"to"}, r.Fields(), "the quota is for messages to this user alone")
			refused++
		}
	}
	require.InDelta(t, 110-25, refused, 1, "one sender may use a quarter of an inbox")
	again := cluster.SendTo(greedy, 0, "user:vic", "x")
	require.Equal(t, []any{200, "true"}, []any{again.Status, again.Header.Get("Idempotency-Replayed")}, "a repeat is not refused")
	require.Equal(t, 200, cluster.SendTo(greedy, 200, "user:zoe", "x").Status)
	require.Equal(t, 200, cluster.SendTo(modest, 1, "user:vic", "x").Status)
	cluster.WaitAllSent(o, func() {})
	require.Equal(t, first, cluster.OpenStream(s, cluster.StreamsPath+"vic?after=0").NextMessage())
}
