package console_test

import (
	"fmt"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
)

// Texts of senders, submitters, receivers and operators may contain phone numbers.
func TestPhoneNumbersInTextsAreMasked(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const number, text, masked = "13912345678", "number 13912345678 is barred", "number 139****5678 is barred"
	submit := func() string {
		got := s.Post("/api/v1/sms/send", `{"phone_number":"13912345678","content":"hi","max_retries":0,"on_unknown":"hold","source":"from 13912345678","metadata":{"customer":"13912345678"},`+
			`"callback_url":"https://shop.test/callback?to=13912345678"}`)
		require.Equal(t, 200, got.Status, got.Text)
		return got.Data("task_id").(string)
	}
	submit()
	s.ClaimOne("app-13912345678") // an app is listed while it has a task
	held := submit()
	_, claim := s.ClaimOne("app-13912345678")
	s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app-13912345678","claim_id":%q,"outcome":"unknown","error_message":%q}`, held, claim, text)).RequireOK()
	id := submit()
	_, claim = s.ClaimOne("app-13912345678")
	s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app-13912345678","claim_id":%q,"status":3,"error_code":"E 13912345678","error_message":%q}`, id, claim, text)).RequireOK()
	s.Post("/api/v1/admin/tasks/"+id+"/retry?reason=13912345678+asks", "").RequireOK()

	endpointPath, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/events","description":"calls 13912345678"}`)
	endpoint := path.Base(endpointPath)
	delivery := cluster.InsertDelivery(s, endpoint, id)
	s.Exec(`update webhook_deliveries set tries = jsonb_build_array(jsonb_build_object('at', now(), 'status', 500, 'duration_ms', 7, 'error', $2::text, 'response', $2::text)) where id = $1`, delivery, text)
	s.Exec(`update webhook_events set payload = replace(payload::text, '"succeeded"', '"succeeded","result":"number 13912345678 is barred","metadata":{"n":13912345678}')`)

	sent := s.Post(cluster.MessagesPath, `{"client_msg_id":"one","to":"orders.paid","type":"order.paid","data":1}`).Data("server_msg_id").(string)
	s.ExhaustSends(message.Sending, sent)
	s.Exec(`update message_live set last_error = $1`, text)

	subscribed := fmt.Sprint(s.Subscribe(cluster.Booking(1, "")).Data("id"))
	s.Exec(`update subscribe_message_logs set send_status = 2, error_code = 'E 13912345678', error_message = $1`, text)
	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason) values ('tmpl', 0, 3, now(), $1)`, text)

	s.Post("/api/v1/admin/queues/default/pause", `{"reason":"number 13912345678 is barred"}`).RequireOK()
	bulk := s.Post("/api/v1/admin/bulk", `{"action":"cancel","filter":{"state":"scheduled","source":"from 13912345678"},"expected":0,"reason":"number 13912345678 is barred"}`).RequireOK()

	b := logIn(t, s.NewCaller("viewer", "viewer"))
	for page, want := range map[string]string{
		"/console/tasks": masked, "/console/tasks?format=csv": masked, "/console/tasks/" + id: masked, "/console/held": masked, "/console/tasks/" + held: masked,
		"/console": masked, "/console/senders": "app-139****5678", "/console/queues": masked, "/console/bulk": masked, "/console/bulk/" + bulk.Data("id").(string): masked,
		"/console/webhooks": "calls 139****5678", "/console/webhooks/" + endpoint: masked, "/console/webhooks/deliveries": masked, "/console/webhooks/deliveries/" + delivery: masked,
		"/console/messages": masked, "/console/messages/" + sent: masked, "/console/subscribe": masked, "/console/subscribe/" + subscribed: masked, "/console/subscribe/templates": masked,
		"/console/audit": "139****5678 asks",
	} {
		got := b.get(page)
		require.Equal(t, 200, got.status, page)
		got.has(t, want)
		require.NotContains(t, got.text, number, page)
	}
	b.get("/console/webhooks/deliveries/"+delivery).has(t, "&#34;n&#34;: 139****5678", "00000000000000000007") // the sequence is not masked
	require.Zero(t, s.Count(`select count(*) from operator_actions where action like '%.reveal'`))

	for page, want := range map[string]string{"/console/tasks/" + id: "13912345678 asks", "/console/messages/" + sent: text, "/console/subscribe/" + subscribed: text} {
		b.submit(page+"/reveal").has(t, want)
	}
	b.submit("/console/tasks/"+id+"/reveal").has(t, `data-address="/console/tasks/`+id+`"`, text, "E 13912345678", "from 13912345678", "customer&#34;", "app-13912345678")
}
