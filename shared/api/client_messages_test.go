package api

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestSubmitAndConfirmAreRepeated(t *testing.T) {
	t.Parallel()
	savedReply := reply{status: 200, body: `{"code":200,"message":"success","data":{"server_msg_id":"m","ack":"saved","state":"sending"}}`}
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{resetReply, busyReply, savedReply}}
		ack, err := s.client().SubmitMessage(t.Context(), MessageRequest{ClientMsgID: "k", To: "orders.paid", Data: JSON(`{"b":1.0,"a":2}`)})
		require.NoError(t, err)
		require.Equal(t, "m", ack.ServerMsgID)
		require.Len(t, s.calls, 3)
		require.Equal(t, `{"client_msg_id":"k","to":"orders.paid","data":{"b":1.0,"a":2}}`, s.calls[2].body)
	})
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{truncatedReply, busyReply, {status: 204}}}
		require.NoError(t, s.client().ConfirmMessage(t.Context(), "m/1"))
		require.Equal(t, "POST /api/v1/messages/m%2F1/received", s.calls[2].path)
		require.Equal(t, `{}`, s.calls[2].body)
	})
}

func TestMessageIsReadByIDAndByKey(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{{status: 200, body: `{"code":200,"message":"success","data":{"server_msg_id":"m","data":[1.0],"receipts":[]}}`}}}
	m, err := s.client().Message(t.Context(), "m")
	require.NoError(t, err)
	require.Equal(t, `[1.0]`, string(m.Data))
	for _, from := range []string{"", "a b"} {
		_, err = s.client().MessageByKey(t.Context(), "k", from)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"GET /api/v1/messages/m", "GET /api/v1/messages/by-key/k", "GET /api/v1/messages/by-key/k?from=a+b"},
		s.paths())
}

func TestPeersReadsOnePage(t *testing.T) {
	t.Parallel()
	page := reply{status: 200, body: `{"code":200,"message":"success","data":{"items":[
		{"peer":"bob","last_server_msg_id":"m","last_message_at":"2023-12-01T10:00:00Z","unread":3}],"next_after":"m"}}`}
	synctest.Test(t, func(t *testing.T) {
		s, limit := &script{replies: []reply{busyReply, page}}, 1
		got, err := s.client().Peers(t.Context(), PeersRequest{Limit: &limit, After: "x"})
		require.NoError(t, err)
		require.Equal(t, "GET /api/v1/messages/peers?after=x&limit=1", s.calls[1].path)
		require.Equal(t, "m", got.NextAfter)
		require.Equal(t, "bob", got.Items[0].Peer)
		require.Equal(t, 3, got.Items[0].Unread)
	})
}

func TestConversationCallsAreRepeated(t *testing.T) {
	t.Parallel()
	page := reply{status: 200, body: `{"code":200,"message":"success","data":{"items":[{"server_msg_id":"m"}],"next_after":"m",
		"read":{"ann":{"unread":0},"bob":{"up_to":"m","read_at":"2023-12-01T10:00:00Z","unread":3}}}}`}
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{busyReply, page, truncatedReply, {status: 204}}}
		limit := 1
		got, err := s.client().Conversation(t.Context(), ConversationRequest{Between: "ann,bob", Limit: &limit, After: "x"})
		require.NoError(t, err)
		require.Equal(t, "GET /api/v1/messages?after=x&between=ann%2Cbob&limit=1", s.calls[1].path)
		require.Equal(t, "m", got.Items[0].ServerMsgID)
		require.Equal(t, "m", got.NextAfter)
		require.Equal(t, ReadCursor{}, got.Read["ann"])
		require.Equal(t, 3, got.Read["bob"].Unread)

		require.NoError(t, s.client().MarkRead(t.Context(), ReadRequest{Between: "ann,bob", UpTo: "m"}))
		require.Len(t, s.calls, 4)
		require.Equal(t, "POST /api/v1/messages/read", s.calls[3].path)
		require.Equal(t, `{"between":"ann,bob","up_to":"m"}`, s.calls[3].body)
	})
}
