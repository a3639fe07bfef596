package e2e

import (
	"fmt"
	"path"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

func (s checkedClient) subscribeMessages() {
	s.T.Helper()
	send := cluster.SubscribePath + "send"
	allFields := cluster.Booking(1, `"lang":"zh_CN","miniprogram_state":"trial","on_unknown":"fail","max_retries":0,"ttl_seconds":60,
		"callback_url":"https://example.com/x","send_at":"2023-12-01T18:00:00+08:00"`)
	first := s.post(200, send, allFields)
	at := first.Header.Get("Location")
	require.Equal(s.T, true, s.post(200, send, allFields).Data("skipped"))
	require.Equal(s.T, true, s.post(200, send, cluster.Booking(1, `"page_path":"other"`)).Data("data_differs"))
	s.post(400, send, `{"business_id":1.5,"message_data":{"thing1":{"value":""}},"surprise":1}`)
	word := s.post(200, cluster.AdminPath+"blocked-words", `{"word":"瑜伽"}`)
	require.Equal(s.T, "content_blocked", s.post(400, send, cluster.Booking(2, "")).Body["error"])
	require.Equal(s.T, true, s.post(200, send, allFields).Data("skipped"))
	require.Equal(s.T, "content_blocked", s.post(400, cluster.SubscribePath+"record", cluster.Recording(2, "")).Body["error"])
	s.call(200, "DELETE", fmt.Sprintf("%sblocked-words/%v", cluster.AdminPath, word.Data("id")), "")
	s.get(200, "/api/v1/sms/task/"+first.Data("task_id").(string))

	// A transaction that submits the same message is open.
	s.Exec("begin")
	s.Exec(`insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data, caller_id, task_id)
		values ('t', 'BOOKING_CONFIRM', 'course_booking', 2, 9007199254740993, 'o', '{}', 0, $1)`, task.NewID())
	s.post(409, send, cluster.Booking(2, ""))
	s.post(409, cluster.SubscribePath+"record", cluster.Recording(2, ""))
	s.Exec("rollback")

	message := "business_type=course_booking&business_id=1&template_type=BOOKING_CONFIRM&receiver_user_id=9007199254740993"
	s.get(200, cluster.SubscribePath+"sent?"+message)
	require.Equal(s.T, false, s.get(200, cluster.SubscribePath+"sent?"+strings.Replace(message, "business_id=1", "business_id=9", 1)).Data("sent"))
	s.get(400, cluster.SubscribePath+"sent?business_id=-1")
	s.post(409, at+"/resend", "")
	s.post(409, at+"/status", `{"app_id":"app","claim_id":1,"send_status":1}`)
	sender := s.Client.NewWeChatSender()
	sender.Send(task.Report{Outcome: task.SentFailed, ErrorCode: "43101", Message: "user refuse to accept the msg"})
	s.get(200, at)
	s.get(200, cluster.SubscribePath+"failures?limit=1")
	s.get(400, cluster.SubscribePath+"failures?limit=0&after=x")
	s.get(400, at+"?after=1.x")
	require.Equal(s.T, true, s.post(200, send, cluster.Booking(1, "")).Data("again"))
	sender.Send(task.Report{Outcome: task.SentOK})
	s.get(200, cluster.SubscribePath+"sent?"+message)
	s.post(400, at+"/resend", `{"force":true}`)
	s.post(200, at+"/resend", `{"force":true,"reason":"the user lost it"}`)
	s.get(200, at)
	s.pages(at)

	s.post(200, send, strings.Replace(cluster.Booking(1, ""), "CONFIRM", "SUCCESS", 1))
	logs := cluster.SubscribePath + "logs?business_type=course_booking&business_id=1&limit=1"
	s.get(200, fmt.Sprintf("%s&after=%v", logs, s.get(200, logs).Data("next_after")))
	s.get(400, logs+"&after=-1")
	s.get(200, cluster.SubscribePath+"statistics?since=2023-12-01T10:00:00Z")
	s.get(200, cluster.SubscribePath+"statistics")
	list := cluster.SubscribePath + "messages?limit=1&from=2023-12-01T10:00:00Z"
	s.get(200, fmt.Sprintf("%s&after=%v", list, s.get(200, list).Data("next_after")))
	s.get(400, list+"&send_status=3")
	s.as(s.NewCaller("lister", "submitter")).get(403, list+"&caller_id=0")
	s.get(400, cluster.SubscribePath+"statistics?since=yesterday")
	s.recordedMessages()
}

// pages reads two pages of each list below.
func (s checkedClient) pages(at string) {
	s.T.Helper()
	id := path.Base(at)
	s.Exec(`update subscribe_message_logs set send_status = 2 where id = $1`, id)
	s.Exec(`insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
		send_status, caller_id, task_id) select template_id, 'OTHER', business_type, business_id, n, receiver_openid, message_data, 2, caller_id, task_id
		from subscribe_message_logs, generate_series(1, 2) n where id = $1`, id)
	s.Exec(`insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data)
		select gen_random_uuid(), $1, 't', 'o', '{"thing1":{"value":"x"}}' from generate_series(1, 20)`, id)
	s.Exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
		select task_id, 0, 'wechat', 5, 3, 0, '', '' from subscribe_message_sends on conflict do nothing`)
	s.Exec(`insert into task_done (id, status, reason, retry_count, ended)
		select s.task_id, 3, 1, 0, 0 from subscribe_message_sends s where not exists (select from task_live l where l.id = s.task_id) on conflict do nothing`)
	newest := s.get(200, at).Data("task_id")
	s.Exec(`insert into report_logs (task_id, verdict) select $1, 'applied' from generate_series(1, 250)`, newest)
	for list, field := range map[string]string{
		cluster.SubscribePath + "failures?limit=2": "items", at + "?": "sends", cluster.AdminPath + "tasks/" + newest.(string) + "?": "timeline",
	} {
		first := s.get(200, list)
		require.NotEmpty(s.T, first.Data("next_after"), list)
		second := s.get(200, list+"&after="+first.Data("next_after").(string))
		require.NotEmpty(s.T, second.Data(field), list)
		require.Nil(s.T, second.Data("next_after"), list)
	}
	s.get(400, cluster.AdminPath+"tasks/"+newest.(string)+"?after=1.2")
}

func (s checkedClient) recordedMessages() {
	s.T.Helper()
	recorded := s.post(200, cluster.SubscribePath+"record", cluster.Recording(3, `"lease_seconds":60`))
	require.Equal(s.T, true, s.post(200, cluster.SubscribePath+"record", cluster.Recording(3, "")).Data("skipped"))
	s.post(400, cluster.SubscribePath+"record", cluster.Recording(3, `"send_at":"2023-12-01T18:00:00+08:00","lease_seconds":1`))
	status := recorded.Header.Get("Location") + "/status"
	report := func(code int, claim any, what string) cluster.Reply {
		s.T.Helper()
		return s.post(code, status, fmt.Sprintf(`{"app_id":"app","claim_id":%v,%s}`, claim, what))
	}
	claim := recorded.Data("claim_id")
	report(200, claim, `"send_status":0,"lease_seconds":60`)
	report(200, claim, `"send_status":2,"error_code":"-1","error_message":"busy","should_retry":true`)
	require.Equal(s.T, true, report(200, claim, `"send_status":2`).Data("already"))
	second := s.post(200, cluster.SubscribePath+"record", cluster.Recording(3, ""))
	require.Equal(s.T, true, second.Data("again"))
	require.Equal(s.T, "stale_claim", report(409, claim, `"send_status":1`).Body["error"])
	report(409, claim, `"send_status":0`)
	report(200, second.Data("claim_id"), `"outcome":"unknown"`)
	report(200, second.Data("claim_id"), `"send_status":1`)
	report(400, 0, `"send_status":3`)
	s.get(404, cluster.SubscribePath+"99")
	s.post(404, cluster.SubscribePath+"99/status", `{"app_id":"app","claim_id":1,"send_status":1}`)
	s.post(404, cluster.SubscribePath+"99/resend", "")
}
