package console_test

import (
	"html"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// keyOf returns the idempotency key of a form.
func keyOf(t *testing.T, got shown) string {
	t.Helper()
	return html.UnescapeString(between(t, got.text, `name="idempotency_key" value="`, `"`))
}

func TestSend(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"login <b>","template_content":"Your code is {code}"}`)
	b := logIn(t, s.NewCaller("shop", "submitter"))
	admin := logIn(t, s)

	t.Run("creates one task for a form that is sent twice", func(t *testing.T) {
		key := keyOf(t, b.get("/console/send"))
		require.NotEqual(t, key, keyOf(t, b.get("/console/send")))
		fields := []string{"idempotency_key", key, "phone_number", "13800138000", "content", hostile, "queue", "otp", "send_at", "2h"}
		got := b.submit("/console/send", fields...)
		got.has(t, "The message was submitted: this is its task.", "138****8000")
		again := b.submit("/console/send", fields...)
		again.has(t, "This form was sent before: this is its task.")
		require.Equal(t, strings.Split(got.path, "?")[0], strings.Split(again.path, "?")[0])
		require.Equal(t, 1, s.Count(`select count(*) from task_live`))
		require.Contains(t, again.text, "otp")
		require.Contains(t, again.text, "in 119 min")
	})
	t.Run("with a template", func(t *testing.T) {
		got := admin.get("/console/send")
		got.has(t, `<option value="1">login &lt;b&gt;: Your code is {code}</option>`)
		got = admin.submit("/console/send", "idempotency_key", keyOf(t, got), "phone_number", "13800138000", "template_id", "1", "params", "code=42")
		got.has(t, "The message was submitted")
		id, _, _ := strings.Cut(strings.TrimPrefix(got.path, "/console/tasks/"), "?")
		require.Equal(t, "Your code is 42", s.Get("/api/v1/sms/task/"+id).Data("content"))
	})
	t.Run("with one of two templates of the same name", func(t *testing.T) {
		s.Post("/api/v1/admin/template", `{"template_name":"login <b>","template_content":"Second {code}"}`)
		got := admin.get("/console/send")
		got.has(t, `<option value="2">login &lt;b&gt;: Second {code}</option>`)
		fields := []string{"idempotency_key", keyOf(t, got), "phone_number", "13800138000", "template_id", "2", "params", "code=42"}
		admin.submit("/console/send/preview", fields...).has(t, `value="2" selected`, "Second 42</p>")
		got = admin.submit("/console/send", fields...)
		id, _, _ := strings.Cut(strings.TrimPrefix(got.path, "/console/tasks/"), "?")
		require.Equal(t, "Second 42", s.Get("/api/v1/sms/task/"+id).Data("content"))
		fields[5] = "<b>" // template_id
		admin.submit("/console/send", fields...).has(t, "choose a template from the list")
	})
	t.Run("with a template by its name", func(t *testing.T) {
		got := b.submit("/console/send", "idempotency_key", keyOf(t, b.get("/console/send")), "phone_number", "13800138000", "template_name", "login <b>", "params", "code=42")
		got.has(t, "The message was submitted")
	})
	t.Run("shows a refused form again", func(t *testing.T) {
		got := b.submit("/console/send", "idempotency_key", "k1", "phone_number", "x", "content", hostile, "queue", hostile, "send_at", "")
		require.Equal(t, 400, got.status)
		got.has(t, `value="k1"`, hostileShown+"</textarea>", `name="queue" value="`+hostileShown+`"`, `<span class="wrong">`)
		require.NotContains(t, got.text, "<script>alert")
		b.submit("/console/send", "idempotency_key", "k1", "phone_number", "13800138000", "send_at", "tomorrow").has(t, "must be a time with its zone")
		b.submit("/console/send", "idempotency_key", "k1", "phone_number", "13800138000", "content", "a", "template_name", "login <b>").has(t, "must be empty when a template is chosen")
		b.submit("/console/send", "idempotency_key", "k1", "phone_number", "13800138000", "template_name", "login <b>", "params", "code").has(t, "each line must be name=value")
		b.submit("/console/send", "idempotency_key", "k1", "phone_number", "13800138000", "template_name", "login <b>", "params", "kode=1").has(t, "is missing")
		require.Equal(t, 400, b.submit("/console/send", "phone_number", "13800138000", "content", "a").status, "without a key")
		require.Equal(t, 404, b.submit("/console/send", "idempotency_key", "k2", "phone_number", "13800138000").status, "no content, and the number has no default content")
		require.Equal(t, 4, s.Count(`select count(*) from task_live`))
	})
	t.Run("shows a preview", func(t *testing.T) {
		got := b.submit("/console/send/preview", "idempotency_key", "k9", "content", "您好 <b>", "phone_number", "1")
		got.has(t, `<p class="text sms">您好 &lt;b&gt;</p>`, "6 characters", "UCS-2", `value="k9"`)
		admin.submit("/console/send/preview", "template_id", "1", "params", "code=7").has(t, "Your code is 7</p>")
	})
	t.Run("previews whether the message would be sent", func(t *testing.T) {
		s.Post("/api/v1/admin/blocked-words", `{"word":"lottery"}`)
		preview := func(b *browser, name, value string) shown {
			form := []string{name, value}
			for _, field := range [][2]string{{"idempotency_key", "k9"}, {"content", "hello {name}"}, {"phone_number", "13800138000"}} {
				if field[0] != name {
					form = append(form, field[0], field[1])
				}
			}
			return b.submit("/console/send/preview", form...)
		}
		const sendable = "It would be sent."
		preview(admin, "send_at", "2h").has(t, sendable, "hello {name}</p>", "12 characters")
		for name, value := range map[string]string{"phone_number": "abc", "send_at": "tomorrow", "queue": "a b", "content": "a lottery"} {
			got := preview(admin, name, value)
			require.NotContains(t, got.text, sendable, name)
			got.has(t, "It would be refused:")
		}
		preview(admin, "send_at", "400d").has(t, "must be at most a year ahead")
		require.NotContains(t, preview(admin, "phone_number", "").text, sendable)
		refused := admin.submit("/console/send", "idempotency_key", "k9", "phone_number", "abc", "content", "hello")
		require.Equal(t, 400, refused.status)
		require.NotContains(t, refused.text, sendable)
		got := preview(b, "send_at", "2h")
		got.has(t, "hello {name}</p>", "12 characters")
		require.NotContains(t, got.text, sendable, "only admins may have the API check a text")
		b.submit("/console/send/preview", "template_name", "login <b>", "params", "code=7").has(t, "Only admins can preview a template")
	})
	t.Run("is for submitters and for admins of all queues", func(t *testing.T) {
		for _, caller := range []*cluster.Client{s.NewCaller("viewer", "viewer"), s.NewCaller("ops", "admin", "otp")} {
			v := logIn(t, caller)
			require.NotContains(t, v.get("/console/tasks").text, `"/console/send"`)
			got := v.get("/console/send")
			require.Equal(t, 403, got.status)
			require.NotContains(t, got.text, "idempotency_key")
			got.has(t, "needs the role submitter")
			require.Equal(t, 403, v.submit("/console/send", "idempotency_key", "k3", "phone_number", "13800138000", "content", "a").status)
		}
		v := logIn(t, s.NewCallerWith("submitter", `"roles":["admin","submitter"],"queues":["otp"]`))
		v.get("/console/tasks").has(t, `"/console/send"`)
		v.submit("/console/send", "idempotency_key", "k3", "phone_number", "13800138000", "content", "a", "queue", "otp").has(t, "The message was submitted")
	})
}

func TestOperatorSendsAMessage(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"login","template_content":"Your code is {code}. It is valid for {minutes} minutes."}`)
	b := openTab(t, s)
	b.logIn(s)
	b.open("/console/send")
	b.fill(`form.stack`, "phone_number", "13800138000", "params", "code=1234")
	b.run(chromedp.SendKeys(`select[name=template_id]`, "login", byQuery), chromedp.WaitVisible(`//*[contains(@class,"sms")][contains(.,"1234")]`))
	b.click(`form.stack button.primary`, `.problem`)
	b.fill(`form.stack`, "params", "code=1234\nminutes=5")
	// The script clicks twice before the browser leaves the page. A second click of a mouse could hit the next page.
	b.run(chromedp.Evaluate(`{ const b = document.querySelector("form.stack button.primary"); b.click(); b.click(); }`, nil), chromedp.WaitVisible(`.timeline`, byQuery))
	require.Equal(t, 1, s.Count(`select count(*) from task_live`))
	b.resizeToPhone()
	b.open("/console/send")
	b.click(`button[name=language]`, `html[lang=zh-CN] h1`)
	b.requireFits()
	b.requireNoBrowserErrors()
}
