package subscribe_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

func TestBusinessIDsAreUnsigned64BitNumbers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for input, output := range map[string]string{
		`0`: "0", `"0"`: "0", `9007199254740993`: "9007199254740993", `18446744073709551615`: "18446744073709551615", `"18446744073709551615"`: "18446744073709551615",
	} {
		templateType := fmt.Sprint("T", len(input), input[:1] == `"`) // different for each input, so that each is a new message
		at := s.Subscribe(strings.Replace(cluster.Booking(input, ""), "CONFIRM", templateType, 1)).Header.Get("Location")
		require.Equal(t, output, s.Get(at).Data("business_id"))
		s.Get(cluster.SubscribePath + "logs?business_type=course_booking&business_id=" + output).RequireOK()
	}
	for _, bad := range []string{`1e3`, `1.0`, `-1`, `-0`, `18446744073709551616`, `"18446744073709551616"`, `"-1"`, `"01"`, `"1e3"`, `""`, `" 1"`, `"+1"`, `"一"`, `true`, `{}`, `[1]`, `null`} {
		r := s.Post(cluster.SubscribePath+"send", cluster.Booking(bad, ""))
		require.Equal(t, 400, r.Status, bad)
		require.Equal(t, []string{"business_id"}, r.Fields(), bad)
		require.Contains(t, r.Text, "18446744073709551615", bad)
	}
	for _, bad := range []string{"1e3", "1.0", "-1", "18446744073709551616", "01", "", "x"} {
		r := s.Get(cluster.SubscribePath + "logs?business_type=course_booking&business_id=" + bad)
		require.Equal(t, []string{"business_id"}, r.Fields(), bad)
	}
	require.Equal(t, 5, s.Count(`select count(*) from subscribe_message_logs`))
}

func TestBadSubscribeMessageNamesEachField(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	long := strings.Repeat("长", 1025) // of 3 bytes each: long[:303] has 101 characters
	for body, fields := range map[string][]string{
		`{}`: {"business_id", "business_type", "message_data", "receiver_openid", "receiver_user_id", "template_id", "template_type"},
		fmt.Sprintf(`{"template_id":%[1]q,"template_type":%[2]q,"business_type":%[2]q,"business_id":-1,"receiver_user_id":1.5,"receiver_openid":%[1]q,
			"message_data":{"thing1":{"value":%[1]q},"phrase2":{"value":"abc"},"x-y":{"value":"1"},"thing3":"x"},"page_path":%[3]q,"lang":"zh","miniprogram_state":"beta",
			"on_unknown":"maybe","max_retries":11,"callback_url":"ftp://x","send_at":"tomorrow","ttl_seconds":0,"source":"x"}`, long[:303], long[:153], long): {
			"business_id", "business_type", "callback_url", "lang", "max_retries", "message_data.phrase2", "message_data.thing1", "message_data.thing3",
			"message_data.x-y", "miniprogram_state", "on_unknown", "page_path", "receiver_openid", "receiver_user_id", "send_at", "source", "template_id", "template_type",
			"ttl_seconds",
		},
		cluster.Booking(1, `"message_data":[]`):                                                           {"message_data"},
		strings.Replace(cluster.Booking(1, ""), `{"thing1":{"value":"瑜伽课"}}`, `"x"`, 1):                   {"message_data"},
		strings.Replace(cluster.Booking(1, ""), `{"thing1":{"value":"瑜伽课"}}`, `{}`, 1):                    {"message_data"},
		strings.Replace(cluster.Booking(1, ""), `"瑜伽课"`, `"a\u0000b"`, 1):                                 {"message_data"},
		cluster.Booking(1, fmt.Sprintf(`"send_at":%q`, time.Now().AddDate(1, 1, 0).Format(time.RFC3339))): {"send_at"},
		cluster.Recording(1, `"lease_seconds":9`):                                                         {"app_id", "lease_seconds"},
	} {
		r := s.Post(cluster.SubscribePath+"send", body)
		require.Equal(t, 400, r.Status, r.Text)
		require.ElementsMatch(t, fields, r.Fields(), body)
	}
	require.Zero(t, s.Count(`select count(*) from subscribe_message_logs`))
	at := s.Subscribe(cluster.Booking(1, "")).Header.Get("Location")
	for body, fields := range map[string][]string{
		`{}`: {"app_id", "claim_id", "send_status"},
		`{"app_id":" ","claim_id":-1,"send_status":3,"outcome":"released","error_code":"` + strings.Repeat("e", 51) + `","should_retry":true,"lease_seconds":9}`: {
			"app_id", "claim_id", "send_status", "outcome", "outcome", "error_code", "should_retry", "lease_seconds", "lease_seconds"},
		`{"app_id":"a","claim_id":1,"send_status":1,"should_retry":true,"lease_seconds":60}`: {"should_retry", "lease_seconds"},
	} {
		r := s.Post(at+"/status", body)
		require.Equal(t, 400, r.Status, r.Text)
		require.ElementsMatch(t, fields, r.Fields(), body)
	}
}

func TestBlockedWordRefusesMessagesThatWouldBeSent(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	first := s.Subscribe(cluster.Booking(1, ""))
	for _, word := range []string{"瑜伽", "4711"} {
		s.Post("/api/v1/admin/blocked-words", fmt.Sprintf(`{"word":%q}`, word)).RequireOK()
	}
	require.Equal(t, first.Data("id"), s.Subscribe(cluster.Booking(1, "")).Data("id"))
	for _, refused := range []string{cluster.Booking(2, ""), strings.Replace(cluster.Booking(2, ""), `"瑜伽课"`, `"ｖ4711"`, 1), strings.Replace(cluster.Booking(2, ""), `thing1":{"value":"瑜伽课"`, `number1":{"value":4711`, 1)} {
		r := s.Post(cluster.SubscribePath+"send", refused)
		require.Equal(t, 400, r.Status, r.Text)
		require.Equal(t, "content_blocked", r.Body["error"])
	}
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentFailed})
	again := s.Post(cluster.SubscribePath+"send", cluster.Booking(1, ""))
	require.Equal(t, "content_blocked", again.Body["error"], "the failed message would be sent again")
	require.Equal(t, 1, s.Count(`select count(*) from tasks`))
}

func TestSMSRoutesRefuseSubscribeQueues(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Subscribe(cluster.Booking(1, ""))
	for _, queue := range []string{task.WeChatQueue, task.RecordedQueue} {
		item := fmt.Sprintf(`{"phone_number":"13800138000","content":"x","queue":%q}`, queue)
		refused := s.Post("/api/v1/sms/send", item)
		require.Equal(t, []string{"queue"}, refused.Fields())
		require.Contains(t, refused.Text, "POST /api/v1/subscribe/send")
		require.Contains(t, s.Post("/api/v1/sms/send/batch", `{"items":[`+item+`]}`).Text, "POST /api/v1/subscribe/send")
		claim := s.Get("/api/v1/sms/tasks/pending?app_id=app&queue=" + queue)
		require.Equal(t, 400, claim.Status)
		require.Equal(t, []string{"queue"}, claim.Fields())
	}
	require.Equal(t, 1, s.Count(`select count(*) from tasks`))
}
