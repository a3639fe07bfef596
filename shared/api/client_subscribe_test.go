package api

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

var subscribeReply = reply{status: 200, body: `{"code":200,"message":"success","data":{"id":17,"task_id":"t","send_status":0,"state":"pending"}}`}

func TestSubscribeIsRepeatedUnlessOnUnknownIsFail(t *testing.T) {
	t.Parallel()
	request := SubscribeRequest{TemplateType: "BOOKING_CONFIRM", BusinessID: NumberOf(1<<64 - 1), ReceiverUserID: "9", MessageData: JSON(`{"thing1":{"value":"Tea"}}`)}
	for policy, calls := range map[string]int{"": 4, "hold": 4, "resend": 4, "fail": 1} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{replies: []reply{truncatedReply, busyReply, inFlightReply, subscribeReply}}
			request.OnUnknown = policy
			_, err := s.client().Subscribe(t.Context(), request)
			require.Equal(t, calls == 4, err == nil, policy)
			require.Len(t, s.calls, calls, policy)
			require.Equal(t, "POST /api/v1/subscribe/send", s.calls[0].path)
			require.Contains(t, s.calls[0].body, `"business_id":"18446744073709551615","receiver_user_id":"9"`)
		})
	}
}

func TestWhenRecordStatusAndResendAreRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{noConnection, noConnection, subscribeReply}}
		r, err := s.client().RecordSubscribe(t.Context(), SubscribeRecordRequest{SubscribeRequest: SubscribeRequest{BusinessID: "1"}, AppID: "a"})
		require.NoError(t, err)
		require.EqualValues(t, 17, r.ID)
		require.Contains(t, s.calls[2].body, `"app_id":"a"`)
		for _, unclear := range []reply{truncatedReply, busyReply} { // after either, the call may have been committed
			s = &script{replies: []reply{unclear, subscribeReply}}
			_, err = s.client().RecordSubscribe(t.Context(), SubscribeRecordRequest{})
			require.Error(t, err)
			require.Len(t, s.calls, 1)
		}

		s = &script{replies: []reply{truncatedReply, gatewayReply, subscribeReply}}
		failed := 2
		_, err = s.client().SubscribeStatus(t.Context(), 17, SubscribeStatusRequest{AppID: "a", ClaimID: 7, SendStatus: &failed})
		require.NoError(t, err)
		require.Equal(t, "POST /api/v1/subscribe/17/status", s.calls[2].path)
		require.Equal(t, `{"app_id":"a","claim_id":"7","send_status":2}`, s.calls[2].body)
		s = &script{replies: []reply{busyReply, subscribeReply}}
		_, err = s.client().ResendSubscribe(t.Context(), 17, SubscribeResendRequest{Reason: "x"})
		require.Error(t, err)
		require.Len(t, s.calls, 1)
	})
}

func TestEachSubscribeGetCallsItsPath(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{{status: 200, body: `{"code":200,"message":"success","data":{"sent":true,"id":17,"business_id":"3","items":[],"sends":[]}}`}}}
	c, ctx := s.client(), t.Context()
	sent, err := c.SubscribeSent(ctx, SubscribeSentRequest{BusinessType: "b", BusinessID: "3", TemplateType: "T", ReceiverUserID: "9007199254740993"})
	require.NoError(t, err)
	require.True(t, sent.Sent)
	l, err := c.SubscribeLog(ctx, 17)
	require.NoError(t, err)
	require.Equal(t, Number("3"), l.BusinessID)
	_, err = c.SubscribeLogs(ctx, SubscribeLogsRequest{BusinessType: "b", BusinessID: "3", After: 17})
	require.NoError(t, err)
	_, err = c.SubscribeFailures(ctx, SubscribeFailuresRequest{})
	require.NoError(t, err)
	_, err = c.SubscribeStatistics(ctx, SubscribeStatisticsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{
		"GET /api/v1/subscribe/sent?business_id=3&business_type=b&receiver_user_id=9007199254740993&template_type=T",
		"GET /api/v1/subscribe/17", "GET /api/v1/subscribe/logs?after=17&business_id=3&business_type=b",
		"GET /api/v1/subscribe/failures", "GET /api/v1/subscribe/statistics",
	}, s.paths())
}

func TestNumberInJSONKeepsItsDigits(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Number{`0`: "0", `"0"`: "0", `9007199254740993`: "9007199254740993", `"18446744073709551615"`: "18446744073709551615", `null`: "7"} {
		n := Number("7")
		require.NoError(t, json.Unmarshal([]byte(raw), &n), raw)
		require.Equal(t, want, n)
		written, err := json.Marshal(n)
		require.NoError(t, err)
		require.Equal(t, `"`+string(want)+`"`, string(written))
	}
	for _, raw := range []string{`-1`, `1.0`, `1e3`, `18446744073709551616`, `"01"`, `""`, `"x"`, `"\u0031"`, `true`, `[]`, `{}`, `"`} {
		var n Number
		require.Error(t, n.UnmarshalJSON([]byte(raw)), raw)
		require.Empty(t, n)
	}
	value, err := NumberOf(1<<64 - 1).Uint64()
	require.NoError(t, err)
	require.EqualValues(t, uint64(1<<64-1), value)
	_, err = Number("").Uint64()
	require.Error(t, err)
}
