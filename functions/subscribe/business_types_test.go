package subscribe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// sentBooking is the path of the query whether the message of a booking was sent. The id of the booking must be appended.
const sentBooking = cluster.SubscribePath + "sent?business_type=course_booking&template_type=BOOKING_CONFIRM&receiver_user_id=9007199254740993&business_id="

func TestCallerMayUseOnlyGrantedBusinessTypes(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCallerWith("shop", `"roles":["submitter"],"business_types":["course_booking"]`)
	hostile := s.NewCallerWith("hostile", `"roles":["submitter"],"business_types":["coupon"]`)

	requireRefused := func(r cluster.Reply) {
		t.Helper()
		require.Equal(t, 403, r.Status, r.Text)
		require.Equal(t, []string{"business_type"}, r.Fields())
		require.Contains(t, r.Text, "coupon", "the error lists the granted types")
	}
	for _, state := range []string{"not submitted", "pending", "sent"} {
		requireRefused(hostile.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")))
		requireRefused(hostile.Post(cluster.SubscribePath+"record", cluster.Recording(1, "")))
		requireRefused(hostile.Get(sentBooking + "1"))
		requireRefused(hostile.Get(cluster.SubscribePath + "logs?business_type=course_booking&business_id=1"))
		switch state {
		case "not submitted":
			require.NotContains(t, shop.Subscribe(cluster.Booking(1, "")).Text, "skipped", "the refused calls did not store this message")
		case "pending":
			s.NewWeChatSender().Send(task.Report{Outcome: task.SentOK})
		}
	}
	require.Equal(t, true, shop.Get(sentBooking+"1").Data("sent"))
	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs`), "the refused calls stored no message")
	coupon := strings.Replace(cluster.Booking(1, ""), "course_booking", "coupon", 1)
	require.NotContains(t, hostile.Subscribe(coupon).Text, "skipped", "a caller may use its granted type")
}

func TestRecorderMayQueryWhatWasSent(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	recorder := s.NewCallerWith("records", `"roles":["submitter"],"queues":["wechat.recorded"]`)
	recorder.Post(cluster.SubscribePath+"record", cluster.Recording(1, "")).RequireOK()
	require.Equal(t, false, recorder.Get(sentBooking+"1").RequireOK().Data("sent"))
	require.Equal(t, 403, recorder.Post(cluster.SubscribePath+"send", cluster.Booking(2, "")).Status)
	sms := s.NewCallerWith("sms", `"roles":["submitter"],"queues":["default"]`)
	require.Equal(t, 403, sms.Get(sentBooking+"1").Status)
}

func TestRefusalDoesNotRevealStateOfOthersMessage(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	grant := `"roles":["submitter"],"business_types":["course_booking"]`
	shop, hostile := s.NewCallerWith("shop", grant), s.NewCallerWith("hostile", grant)
	var responses []string
	requireRefused := func() {
		t.Helper()
		for _, r := range []cluster.Reply{
			hostile.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")),
			hostile.Post(cluster.SubscribePath+"send", strings.Replace(cluster.Booking(1, ""), "瑜伽课", "茶", 1)),
			hostile.Post(cluster.SubscribePath+"record", cluster.Recording(1, "")),
			hostile.Get(sentBooking + "1"),
		} {
			require.Equal(t, 403, r.Status, r.Text)
			require.Empty(t, r.Header.Get("Location"))
			responses = append(responses, fmt.Sprint(r.Body["error"], r.Body["message"], r.Body["fields"]))
		}
	}
	at := shop.Subscribe(cluster.Booking(1, "")).Header.Get("Location")
	requireRefused() // it is pending
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentFailed})
	requireRefused() // it failed
	require.Equal(t, true, shop.Subscribe(cluster.Booking(1, "")).Data("again"))
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentOK})
	requireRefused() // it is sent
	require.Equal(t, 404, hostile.Get(at).Status)
	require.Equal(t, 404, hostile.Post(at+"/status", `{"app_id":"app","claim_id":"1","send_status":2}`).Status)
	for _, text := range responses {
		require.Equal(t, responses[0], text, "the error is the same in every state of the message")
	}
	require.Equal(t, "瑜伽课", shop.Get(at).Data("message_data").(map[string]any)["thing1"].(map[string]any)["value"])
	require.EqualValues(t, 1, shop.Get(at).Data("send_status"))
}
