package console_test

import (
	"fmt"
	"html"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/templates").has(t, "No template matches.", `href="/console/templates/new"`)
	b.get("/console/templates/new").has(t, "The preview is shown here.")

	var page string
	t.Run("are added", func(t *testing.T) {
		got := b.submit("/console/templates/new", "template_name", hostile, "template_content", hostile+" {code}")
		got.has(t, "The template was added.", hostileShown, hostileShown+" {code}</textarea>", "code=\n</textarea>", "Without a value:")
		require.NotContains(t, got.text, "<script>alert")
		page, _, _ = strings.Cut(got.path, "?")
		b.get("/console/templates").has(t, hostileShown, `<code>code</code>`)
		require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'template.create'`))
	})
	t.Run("are changed", func(t *testing.T) {
		b.submit(page, "template_name", "login", "template_content", "Your code is {code}").has(t, "Saved.", `value="login"`)
		b.submit(page+"/deactivate").has(t, "The template is inactive.", "Activate</button>")
		require.NotContains(t, b.get("/console/templates?active=true").text, "login")
		b.submit(page+"/activate").has(t, "The template is active.")
	})
	t.Run("are previewed with what was typed", func(t *testing.T) {
		got := b.submit(page+"/preview", "template_name", "x", "template_content", "验证码 {code} 给 {name}", "params", "code=1=2\r\nname=\r\nother=<b>\r\n")
		require.Equal(t, 200, got.status)
		got.has(t, "验证码 1=2 给 {name}", "UCS-2", `<code>name</code>`, `<code>other</code>`, "Segments 1", "Without a value:", `>code=1=2`)
		b.submit(page+"/preview", "template_content", "a", "params", "code").has(t, "each line must be name=value")
		b.submit(page+"/preview", "template_content", "").has(t, "template_content is required")
		b.submit("/console/templates/new/preview", "template_content", "a {b}", "params", "b=c").has(t, "a c</p>", "It would be sent.")
		require.Equal(t, "Your code is {code}", s.Get("/api/v1/admin/template/"+strings.TrimPrefix(page, "/console/templates/")).Data("template_content"))
	})
	t.Run("show a refused form again", func(t *testing.T) {
		got := b.submit(page, "template_name", strings.Repeat("x", 101), "template_content", "kept {a}")
		require.Equal(t, 400, got.status)
		got.has(t, "kept {a}</textarea>", `<span class="wrong">`)
		got = b.submit("/console/templates/new", "template_name", "", "template_content", "kept {a}")
		got.has(t, "kept {a}</textarea>", `<span class="wrong">`)
		require.Equal(t, 404, b.submit("/console/templates/999/activate").status)
		require.Equal(t, 404, b.submit(page+"/explode").status)
	})
	t.Run("are read and not changed by a viewer and by a limited operator", func(t *testing.T) {
		for _, caller := range []*cluster.Client{s.NewCaller("viewer", "viewer"), s.NewCaller("ops", "admin", "otp")} {
			v := logIn(t, caller)
			got := v.get("/console/templates")
			got.has(t, "login")
			require.NotContains(t, got.text, "/console/templates/new")
			got = v.get(page)
			got.has(t, "Your code is {code}")
			require.NotContains(t, got.text, "Save</button>")
			require.NotContains(t, got.text, "Deactivate</button>")
			require.Equal(t, 403, v.submit(page+"/deactivate").status)
		}
	})
}

func TestDefaultSMSIsAddedChangedAndDeleted(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	got := b.submit("/console/default-sms", "form", "add", "phone_number", "13800138000", "content", hostile)
	got.has(t, "Saved.", hostileShown+"</textarea>", "138****8000")
	require.NotContains(t, got.text, "13800138000")
	page, _, _ := strings.Cut(got.path, "?")
	got = b.get("/console/default-sms?is_sent=false")
	got.has(t, "138****8000", "hidden, ")
	require.NotContains(t, got.text, "13800138000")
	require.NotContains(t, got.text, hostileShown)
	require.NotContains(t, b.get("/console/audit").text, hostileShown)
	b.get("/console/default-sms?phone_number=1").has(t, `<span class="wrong">`)

	got = b.submit("/console/default-sms", "form", "add", "phone_number", "13800138000", "content", "again")
	require.Equal(t, 409, got.status)
	got.has(t, `<details class="panel" open>`, "again</textarea>")
	got = b.submit("/console/default-sms", "form", "add", "phone_number", "x", "content", "", "use_template", "true")
	got.has(t, `value="x"`, `value="true" checked`, `<span class="wrong">`)

	b.submit(page, "content", "code=1", "use_template", "true").has(t, "Saved.", "code=1</textarea>", `value="true" checked`)
	b.submit(page, "content", strings.Repeat("字", 201)).has(t, strings.Repeat("字", 201)+"</textarea>", `<span class="wrong">`)
	s.Exec(`update default_sms_data set is_sent = true`)
	b.get(page).has(t, "Allow it once more")
	b.submit(page+"/reset").has(t, "may be sent once more")
	require.Equal(t, 1, s.Count(`select count(*) from default_sms_data where not is_sent`))

	v := logIn(t, s.NewCaller("viewer", "viewer"))
	v.get(page).has(t, "hidden, 6 characters")
	require.NotContains(t, v.get(page).text, "Delete</button>")
	require.Equal(t, 403, v.submit(page+"/delete").status)

	require.Equal(t, "/console/default-sms?done=deleted", b.submit(page+"/delete").path)
	require.Zero(t, s.Count(`select count(*) from default_sms_data`))
}

func TestBlockedWordsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/blocked-words").has(t, "No word is blocked.")
	got := b.submit("/console/blocked-words", "word", hostile)
	got.has(t, "The word is blocked.", hostileShown)
	require.NotContains(t, got.text, "<script>alert")
	got = b.submit("/console/blocked-words", "word", strings.Repeat("x", 101))
	require.Equal(t, 400, got.status)
	got.has(t, strings.Repeat("x", 101), `<span class="wrong">`)
	id := s.QueryText(`select id::text from blocked_words`)

	v := logIn(t, s.NewCaller("viewer", "viewer"))
	require.NotContains(t, v.get("/console/blocked-words").text, "Remove</button>")
	require.Equal(t, 403, v.submit("/console/blocked-words/"+id+"/remove").status)

	for i := range 50 {
		s.Post("/api/v1/admin/blocked-words", fmt.Sprintf(`{"word":"word%d"}`, i))
	}
	got = b.get(html.UnescapeString(between(t, b.get("/console/blocked-words").text, `rel="next" href="`, `"`)))
	require.Equal(t, 1, strings.Count(got.text, "Remove</button>"))
	require.NotContains(t, got.text, `rel="next"`)
	s.Exec(`delete from blocked_words where id <> $1`, id)

	b.submit("/console/blocked-words/"+id+"/remove").has(t, "The word is allowed again.", "No word is blocked.")
}

func TestOperatorPreviewsATemplate(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"登录","template_content":"【山海】验证码 {code}，{minutes} 分钟内有效。"}`)
	b := openTab(t, s)
	b.logIn(s)
	b.open("/console/templates/1")
	b.run(chromedp.SendKeys(`textarea[name=params]`, "code=888666\nmore=1", byQuery))
	b.run(chromedp.WaitVisible(`//*[contains(@class,"sms")][contains(.,"888666")]`))
	require.Contains(t, b.text(), "more")
	b.requireNoBrowserErrors()
}
