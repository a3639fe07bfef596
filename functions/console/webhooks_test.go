package console_test

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

func TestRobotPagesShowNoSecret(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s.NewCaller("shop", "submitter"))
	b.get("/console/webhooks").has(t, `<option value="wecom">WeCom robot</option>`, `<option value="cloudevents" selected>`)
	got := b.submit("/console/webhooks", "url", "https://robot.test/send?key=1", "events", "task.failed", "format", "wecom")
	require.Equal(t, 400, got.status)
	got.has(t, "must be one or more of webhook.disabled", `<option value="wecom" selected>`)
	got = b.submit("/console/webhooks", "url", "https://robot.test/send?key=1", "events", "webhook.disabled", "format", "wecom")
	require.Equal(t, 200, got.status)
	got.has(t, "The robot is added.", "WeCom robot", "Send a test event")
	require.NotContains(t, got.text, "Replace the secret")
	require.NotContains(t, got.text, "verifies an event")
	b.get("/console/webhooks").has(t, `<small class="clip">WeCom robot</small>`)
	got = b.submit(got.path[:strings.Index(got.path, "?")] + "/test")
	got.has(t, "<h2>Text</h2>", `<pre class="text">`+"[Sendonce] Test: this robot is set up to receive alerts.\n[Sendonce] 测试")
	require.NotContains(t, got.text, "specversion")

	const secret = "SECad0robot0of0tests"
	got = b.submit("/console/webhooks", "url", "https://robot.test/send?key=1", "events", "webhook.disabled", "format", "slack", "secret", secret)
	require.Equal(t, 400, got.status)
	got.has(t, "robots of Slack and WeCom take no signature")
	require.NotContains(t, got.text, secret)
	got = b.submit("/console/webhooks", "url", "https://robot.test/send?key=1", "events", "webhook.disabled", "format", "dingtalk", "secret", secret)
	require.Equal(t, 200, got.status)
	got.has(t, "The robot is added.")
	require.NotContains(t, got.text, secret)
}

func TestEndpointPages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s.NewCaller("shop", "submitter"))

	t.Run("refuse a bad endpoint and keep what was entered", func(t *testing.T) {
		got := b.submit("/console/webhooks", "url", "ftp://"+hostile, "description", hostile, "events", "task.failed")
		require.Equal(t, 400, got.status)
		got.has(t, `value="ftp://`+hostileShown+`"`, `value="`+hostileShown+`"`, `value="task.failed" checked`, `<span class="wrong">`)
	})
	b.get("/console/webhooks").has(t, "need TASK_EVENTS=all")
	require.NotContains(t, b.get("/console/webhooks").text, "alert.raised", "only for admins")
	added := b.submit("/console/webhooks", "url", "https://shop.test/events?a=%22%3E", "description", hostile, "events", "task.failed", "events", "webhook.disabled")
	require.Equal(t, 200, added.status)
	require.Equal(t, "no-store", added.header.Get("Cache-Control"))
	secret := between(t, added.text, `data-copy="`, `"`)
	require.True(t, strings.HasPrefix(secret, "whsec_"), secret)
	id := s.QueryText(`select id::text from webhook_endpoints where url is not null`)
	endpointPage := "/console/webhooks/" + id

	t.Run("show the endpoint without its secret", func(t *testing.T) {
		for _, path := range []string{"/console/webhooks", endpointPage} {
			got := b.get(path)
			got.has(t, "https://shop.test/events?a=%22%3E", hostileShown, "task.failed, webhook.disabled")
			require.NotContains(t, got.text, secret)
			require.NotContains(t, got.text, "<script>alert")
		}
	})
	t.Run("disable and enable", func(t *testing.T) {
		b.submit(endpointPage+"/disable").has(t, "The endpoint is disabled.", `action="`+endpointPage+`/enable"`)
		got := b.submit(endpointPage + "/test")
		require.Equal(t, 409, got.status)
		got.has(t, "enable it first", `data-address="`+endpointPage+`"`)
		b.submit(endpointPage+"/enable").has(t, "The endpoint is enabled.", `action="`+endpointPage+`/disable"`)
	})
	t.Run("replace the secret", func(t *testing.T) {
		got := b.submit(endpointPage + "/rotate")
		fresh := between(t, got.text, `data-copy="`, `"`)
		require.True(t, strings.HasPrefix(fresh, "whsec_"), fresh)
		require.NotEqual(t, secret, fresh)
		got.has(t, "in 23 h", `data-address="`+endpointPage+`"`)
		require.NotContains(t, b.get(endpointPage).text, fresh)
	})
	t.Run("send a test event", func(t *testing.T) {
		got := b.submit(endpointPage + "/test")
		require.True(t, strings.HasPrefix(got.path, "/console/webhooks/deliveries/"), got.path)
		got.has(t, "A test event is on its way.", "sendonce.test.v1", "It was not tried yet.")
	})
	t.Run("hide the endpoints of other callers", func(t *testing.T) {
		bank := logIn(t, s.NewCaller("bank", "submitter"))
		require.NotContains(t, bank.get("/console/webhooks").text, id)
		require.Equal(t, 404, bank.get(endpointPage).status)
		for _, do := range []string{"disable", "rotate", "test", "delete"} {
			require.Equal(t, 404, bank.submit(endpointPage+"/"+do).status)
		}
	})
	t.Run("show a viewer no buttons", func(t *testing.T) {
		viewer := logIn(t, s.NewCaller("viewer", "viewer"))
		viewer.get("/console/webhooks").has(t, id, `href="/console/callers/`)
		for _, path := range []string{endpointPage, "/console/webhooks", "/console/webhooks/deliveries"} {
			require.NotContains(t, viewer.get(path).text, `method="post" action="/console/webhooks`)
		}
		require.Equal(t, 403, viewer.submit(endpointPage+"/disable").status)
	})
	t.Run("delete", func(t *testing.T) {
		got := b.submit(endpointPage + "/delete")
		require.Equal(t, "/console/webhooks?done=endpoint_delete", got.path)
		got.has(t, "The endpoint is deleted.", "There are no endpoints.")
	})
}

func TestDeliveryPages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	endpointPath, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/events"}`)
	endpoint := path.Base(endpointPath)
	subject := task.NewID().String()
	delivered, failed := cluster.InsertDelivery(s, endpoint, subject), cluster.InsertDelivery(s, endpoint, task.NewID())
	cluster.InsertAttempts(s, delivered)
	s.Exec(`update webhook_deliveries set tries = jsonb_build_array(jsonb_build_object('at', now(), 'status', 500, 'duration_ms', 7, 'error', $2::text, 'response', $2::text)),
		state = 2, attempts = 9, tried = 1, next_at = null, finished_at = now() where id = $1`, failed, hostile)
	b := logIn(t, s)
	const list = "/console/webhooks/deliveries"

	t.Run("list by filters", func(t *testing.T) {
		b.get(list).has(t, delivered, failed, "HTTP 500 "+hostileShown, "HTTP 204")
		for query, want := range map[string][2]bool{
			"state=failed": {false, true}, "endpoint_id=" + endpoint: {true, true}, "task_id=" + subject: {true, false}, "from=1h": {true, true}, "to=1h": {false, false},
			"endpoint_id=" + task.NewID().String(): {false, false},
		} {
			got := b.get(list + "?" + query)
			require.Equal(t, 200, got.status, query)
			require.Equal(t, want, [2]bool{strings.Contains(got.text, delivered), strings.Contains(got.text, failed)}, query)
		}
		got := b.get(list + "?endpoint_id=x%22%3E&from=yesterday")
		require.Equal(t, 400, got.status)
		got.has(t, `value="x&#34;&gt;"`, `value="yesterday"`, `<span class="wrong">`)
	})
	t.Run("show each try and the body", func(t *testing.T) {
		b.get(list+"/"+delivered).has(t, "10000 ms", "timed out after 10s", "204", `href="/console/tasks/`+subject+`"`, "&#34;specversion&#34;: &#34;1.0&#34;")
		got := b.get(list + "/" + failed)
		got.has(t, hostileShown, "500", "7 ms")
		require.NotContains(t, got.text, "<script>alert")
		require.Equal(t, 404, b.get(list+"/x").status)
	})
	t.Run("resend one and many", func(t *testing.T) {
		b.submit(list+"/"+delivered+"/resend").has(t, "The delivery is sent again.", "pending")
		got := b.submit(list+"/resend", "since", "yesterday", "reason", hostile)
		require.Equal(t, 400, got.status)
		got.has(t, `value="yesterday"`, hostileShown, `<span class="wrong">`)
		got = b.submit(list+"/resend", "since", "1d", "endpoint_id", endpoint, "reason", "back")
		require.Equal(t, list+"?done=resent&endpoint_id="+endpoint+"&n=1", got.path)
		got.has(t, "Sent again: 1 deliveries.")
		require.Equal(t, 2, s.Count(`select count(*) from webhook_deliveries where state = 0`))
		b.submit(list+"/resend", "since", "1d").has(t, "Sent again: 0 deliveries.")
		require.NotContains(t, b.get(list+"?done=resent&n=%3Cb%3E").text, "Sent again")
	})
}

func TestMenuHidesPagesClosedToLimitedOperators(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shown := logIn(t, s.NewCaller("limited", "admin", "promo")).get("/console/tasks")
	shown.has(t, `href="/console/queues"`)
	for _, path := range []string{"/console/webhooks", "/console/messages", "/console/subscribe"} {
		require.NotContains(t, shown.text, `href="`+path+`"`)
	}
}

// Long texts without a space do not make a page wider than the window.
func TestLongTextsFitThePages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	long := strings.Repeat("Ж宽W", 160)
	endpointPath, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/`+strings.Repeat("a", 1900)+`","description":"`+long[:200]+`"}`)
	delivery := cluster.InsertDelivery(s, path.Base(endpointPath), task.NewID())
	s.Exec(`update webhook_deliveries set tries = jsonb_build_array(jsonb_build_object('at', now(), 'duration_ms', 1, 'error', $1::text, 'response', $1::text))`, long)
	stuck := s.Post(cluster.MessagesPath, `{"client_msg_id":"`+strings.Repeat("k", 255)+`","to":"a.`+strings.Repeat("b", 150)+`","type":"`+strings.Repeat("t", 100)+`","data":"`+long+`"}`).RequireOK()
	id := stuck.Data("server_msg_id").(string)
	s.ExhaustSends(message.Sending, id)
	s.Exec(`update message_live set last_error = $1`, long[:200])
	subscribed := fmt.Sprint(s.Subscribe(cluster.Booking(1, "")).Data("id"))
	s.Exec(`update subscribe_message_logs set template_type = $1, business_type = $1, template_id = $2, error_message = $3, error_code = $1`, strings.Repeat("W", 50), strings.Repeat("W", 100), long)
	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason) values ($1, 0, 3, now(), $2)`, strings.Repeat("W", 100), long)
	tab := openTab(t, s)
	tab.logIn(s)
	for _, page := range []string{
		"webhooks", "webhooks/" + path.Base(endpointPath), "webhooks/deliveries", "webhooks/deliveries/" + delivery, "messages", "messages/" + id,
		"subscribe", "subscribe/" + subscribed, "subscribe/statistics", "subscribe/templates",
	} {
		tab.requireFitsEverywhere("/console/" + page)
	}
}
