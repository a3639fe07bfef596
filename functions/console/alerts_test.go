package console_test

import (
	"fmt"
	"html"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

const deadLetterSQL = `insert into dead_letters (function, event_id, event_type, event, reason, attempts) values ('save', $1, 'sendonce.message', $2, $3, 9)`

func TestOpenAlertsAreListedFirst(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/alerts").has(t, "There are no alerts.")
	s.Exec(`insert into alerts (id, kind, queue, value, threshold, cleared_at, cleared_value) values
		(gen_random_uuid(), 'backlog', 'otp', 12345, 1000, now(), 10), (gen_random_uuid(), 'failure_rate', 'promo', 0.256, 0.2, null, null), (gen_random_uuid(), 'stream_full', 'USERS', 0.9, 0.8, null, null)`)
	got := b.get("/console/alerts")
	got.has(t, "12,345", "25.6 %", "90.0 %", `href="/console/tasks?queue=promo"`, "state cleared")
	require.Less(t, strings.Index(got.text, "promo"), strings.Index(got.text, "otp"), "open alerts are first")

	got = logIn(t, s.NewCaller("ops", "admin", "otp")).get("/console/alerts")
	got.has(t, "12,345")
	require.NotContains(t, got.text, "promo")
}

func TestDeadLettersAreListedAndDismissed(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/dead-letters").has(t, "There are no dead letters.")
	s.Exec(deadLetterSQL, "e-1", `{"text":"</pre><script>alert(1)</script>","n":[1]}`, hostile)
	s.Exec(deadLetterSQL, "e-2", `not {json <b>`, "r")
	got := b.get("/console/dead-letters")
	got.has(t, "{\n  &#34;text&#34;: &#34;&lt;/pre&gt;&lt;script&gt;", hostileShown, "not {json &lt;b&gt;", "<b>message</b>")
	require.NotContains(t, got.text, "<script>alert")
	s.Exec(deadLetterSQL, "e-3", `{"specversion":"1.0","subject":"s-1","data":{"task_id":"t-1","caller_id":"0","from":"shop"}}`, "r")
	b.get("/console/dead-letters").has(t, `<a href="/console/search?q=t-1"><code>t-1</code></a>`, "<dd>"+s.User+"</dd>", `<dd class="text">shop</dd>`)
	s.Exec(`delete from dead_letters where event_id = 'e-3'`)

	for i := range 12 {
		s.Exec(deadLetterSQL, fmt.Sprintf("more-%02d", i), `{}`, "r")
	}
	got = b.get(html.UnescapeString(between(t, b.get("/console/dead-letters").text, `rel="next" href="`, `"`)))
	got.has(t, "more-01", "e-1<", "e-2<")
	require.NotContains(t, got.text, "more-02")
	require.NotContains(t, got.text, `rel="next"`)
	s.Exec(`delete from dead_letters where event_id like 'more-%'`)

	id := s.QueryText(`select id::text from dead_letters where event_id = 'e-1'`)
	got = b.submit("/console/dead-letters/"+id+"/dismiss", "form", "dismiss "+id, "reason", " ")
	require.Equal(t, 400, got.status)
	got.has(t, `<details open>`, `<span class="wrong">`)

	v := logIn(t, s.NewCaller("viewer", "viewer"))
	require.NotContains(t, v.get("/console/dead-letters").text, "/dismiss")
	require.Equal(t, 403, v.submit("/console/dead-letters/"+id+"/dismiss", "reason", "r").status)

	got = b.submit("/console/dead-letters/"+id+"/dismiss", "form", "dismiss "+id, "reason", hostile)
	got.has(t, "The event was dismissed.", "e-2")
	require.NotContains(t, got.text, "e-1")
	b.get("/console/audit").has(t, "dead_letter.dismiss", hostileShown)
}

func TestAuditShowsChanges(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/audit").has(t, "No audit entry matches.")
	s.Post("/api/v1/admin/template", `{"template_name":"old name","template_content":"a {b}"}`)
	s.Do("PUT", "/api/v1/admin/template/1", `{"template_name":"<script>alert(1)</script>"}`)
	s.Post("/api/v1/admin/default-sms", `{"phone_number":"13800138000","content":"x"}`)
	id := s.SubmitTo("otp")
	s.Post("/api/v1/admin/tasks/"+id+"/cancel?reason=why%3Cb%3E", "")

	got := b.get("/console/audit")
	got.has(t, "<del>old name</del> <ins>&lt;script&gt;alert(1)&lt;/script&gt;</ins>", `href="/console/templates/1"`, `href="/console/tasks/`+id+`"`, "<del>pending</del> <ins>failed</ins>", "why&lt;b&gt;", "138****8000")
	require.NotContains(t, got.text, "13800138000")
	require.NotContains(t, got.text, "<script>alert")
	s.NewCaller("phone", "sender", "otp", "promo")
	s.Do("PUT", "/api/v1/admin/callers/1", `{"queues":["otp"],"max_waiting_tasks":7}`)
	b.get("/console/audit?subject=caller/1").has(t, "<ins>otp, promo</ins>", "<del>otp, promo</del> <ins>otp</ins>", "<code>max_waiting_tasks</code>  <ins>7</ins>")
	got = b.get("/console/audit?subject=template/1")
	got.has(t, "template.create", `value="template/1"`)
	require.NotContains(t, got.text, "task.cancel")
	b.get("/console/tasks/"+id).has(t, `href="/console/audit?subject=`+id+`"`)
	b.get("/console/audit?subject="+strings.Repeat("x", 101)).has(t, `<span class="wrong">`)

	v := logIn(t, s.NewCaller("shop", "submitter"))
	require.Equal(t, 403, v.get("/console/audit").status)
	require.NotContains(t, v.get("/console/tasks").text, "/console/audit")
}
