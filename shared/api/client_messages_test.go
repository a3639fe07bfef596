package api

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestAMessageIsSubmittedAndConfirmedAsOftenAsItTakes(t *testing.T) {
	t.Parallel()
	saved := answer{status: 200, body: `{"code":200,"message":"success","data":{"server_msg_id":"m","ack":"saved","state":"sending"}}`}
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{reset, busy, saved}}
		ack, err := s.client().SubmitMessage(t.Context(), MessageRequest{ClientMsgID: "k", To: "orders.paid", Data: JSON(`{"b":1.0,"a":2}`)})
		require.NoError(t, err)
		require.Equal(t, "m", ack.ServerMsgID)
		require.Len(t, s.calls, 3)
		require.Equal(t, `{"client_msg_id":"k","to":"orders.paid","data":{"b":1.0,"a":2}}`, s.calls[2].body)
	})
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{cut, busy, {status: 204}}}
		require.NoError(t, s.client().ConfirmMessage(t.Context(), "m/1"))
		require.Equal(t, "POST /api/v1/messages/m%2F1/received", s.calls[2].path)
		require.Equal(t, `{}`, s.calls[2].body)
	})
}

func TestAMessageIsReadByEitherOfItsIDs(t *testing.T) {
	t.Parallel()
	s := &script{answers: []answer{{status: 200, body: `{"code":200,"message":"success","data":{"server_msg_id":"m","data":[1.0],"receipts":[]}}`}}}
	m, err := s.client().Message(t.Context(), "m")
	require.NoError(t, err)
	require.Equal(t, `[1.0]`, string(m.Data))
	for _, from := range []string{"", "a b"} {
		_, err = s.client().MessageByKey(t.Context(), "k", from)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"GET /api/v1/messages/m", "GET /api/v1/messages/by-key/k", "GET /api/v1/messages/by-key/k?from=a+b"},
		[]string{s.calls[0].path, s.calls[1].path, s.calls[2].path})
}
