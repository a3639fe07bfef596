package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// TestInputIsStricterThanTheOriginalAPI checks each row of the table in docs/guarantees.md.
func TestInputIsStricterThanTheOriginalAPI(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const send, report = "/api/v1/sms/send", "/api/v1/sms/report"
	refused := func(r cluster.Reply, status int, code string, fields ...string) {
		t.Helper()
		require.Equal(t, status, r.Status, r.Text)
		require.Equal(t, code, r.Body["error"], r.Text)
		require.Equal(t, fields, r.Fields(), r.Text)
	}
	invalid := func(r cluster.Reply, fields ...string) {
		t.Helper()
		refused(r, 400, "invalid_request", fields...)
	}
	const phone = `"phone_number":"13800138000"`

	invalid(s.Post(send, `{`+phone+`,"content":"x","use_template":true}`), "use_template")
	s.Post("/api/v1/admin/template", `{"template_name":"t","template_content":"{code} for {name}"}`).RequireOK()
	invalid(s.Post(send, `{`+phone+`,"content":"code=1","use_template":true}`), "params.name")
	invalid(s.Post(send, `{`+phone+`,"content":"code=%zz&name=Ann","use_template":true}`), "content")
	r := s.Post(send, `{`+phone+`,"content":"code={name}&name=Ann&more=1","use_template":true,"idempotency_key":"k"}`)
	require.Equal(t, "{name} for Ann", r.Data("final_content"), "a value is text")
	require.Equal(t, []any{"more"}, r.Data("unused_params"))
	refused(s.Post(send, `{`+phone+`,"content":"other","idempotency_key":"k"}`), 422, "idempotency_key_reused")
	invalid(s.Post(send, `{`+phone+`,"content":" "}`), "content")
	invalid(s.Post(send, fmt.Sprintf(`{%s,"content":"%0201d"}`, phone, 1)), "content")
	refused(s.Do("POST", send, `{`+phone+`,"content":"x"}`, "Content-Type", "text/plain"), 415, "unsupported_media_type")

	claimed := s.Get("/api/v1/sms/tasks/pending?app_id=app").List()[0]
	invalid(s.Get("/api/v1/sms/tasks/pending?app=app"), "app", "app_id")
	reportAs := func(app string, status int, more string) cluster.Reply {
		return s.Post(report, fmt.Sprintf(`{"task_id":%q,"app_id":%q,"status":%d%s}`, claimed["task_id"], app, status, more))
	}
	invalid(reportAs("app", 3, `,"should_rety":true`), "should_rety")
	refused(reportAs("other", 2, ""), 409, "stale_claim")
	require.Equal(t, 200, reportAs("app", 2, "").Status)
	refused(reportAs("app", 3, ""), 409, "stale_claim")
	require.Equal(t, 2, s.Count(`select count(*) from report_logs where verdict = 'stale_claim'`), "both are logged")

	require.Nil(t, s.Subscribe(cluster.Booking(1, "")).Data("skipped"))
	require.Equal(t, true, s.Subscribe(cluster.Booking(1, "")).Data("skipped"), "it is being sent")
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentFailed})
	shop := s.NewCaller("shop", "submitter")
	refused(shop.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")), 403, "forbidden")
	refused(shop.Get("/api/v1/admin/statistics"), 403, "forbidden")
	refused(shop.Post("/api/v1/messages", `{"from":"ann","client_msg_id":"c","to":"a.b","type":"t","data":1}`), 403, "forbidden")
	require.Equal(t, 400, s.Post(cluster.SubscribePath+"send", `{"template_id":"x","template_type":"T","business_type":"b","business_id":2,"receiver_user_id":1,
		"receiver_openid":"o","message_data":{"thing1":{"value":"more than the twenty characters of a thing"}}}`).Status)
	recorded := s.Post(cluster.SubscribePath+"record", cluster.Recording(3, "")).RequireOK()
	refused(s.Post(fmt.Sprintf("%s%v/status", cluster.SubscribePath, recorded.Data("id")),
		fmt.Sprintf(`{"app_id":"other","claim_id":%v,"send_status":1}`, recorded.Data("claim_id"))), 409, "stale_claim")
}
