package console_test

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// browser is the browser of a visitor: it keeps cookies and follows redirects.
type browser struct {
	t    *testing.T
	url  string
	http *http.Client
}

// newBrowser returns the browser of a visitor who has not logged in.
func newBrowser(t *testing.T, s *cluster.Client) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &browser{t, s.URL, &http.Client{Jar: jar}}
}

// logIn returns the browser of a caller who has logged in.
func logIn(t *testing.T, c *cluster.Client) *browser {
	t.Helper()
	b := newBrowser(t, c)
	shown := b.submit("/console/login", "name", c.User, "password", c.Password)
	require.Equal(t, 200, shown.status, shown.text)
	require.NotContains(t, shown.path, "login")
	return b
}

// shown is a page as the browser received it.
type shown struct {
	status int
	path   string // after redirects
	text   string
	header http.Header
}

func (b *browser) get(path string) shown {
	b.t.Helper()
	return b.do(http.MethodGet, path, "")
}

// submit submits a form, whose fields are given as name, value, name, value.
func (b *browser) submit(path string, fields ...string) shown {
	b.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	return b.do(http.MethodPost, path, form.Encode())
}

// do makes a request. form is URL-encoded; a GET has none.
func (b *browser) do(method, path, form string) shown {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(form))
	require.NoError(b.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := b.http.Do(req)
	require.NoError(b.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return shown{res.StatusCode, res.Request.URL.RequestURI(), string(text), res.Header}
}

// hostile is a text that a caller might write into any field.
const hostile = `"><script>alert(1)</script>'{{.}}` + "\u202e\u200b"

// hostileShown is hostile as a page must show it.
const hostileShown = `&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#39;{{.}}` + "\u202e\u200b"

// has fails the test unless the page has all the texts, in any order.
func (s shown) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(s.text, text) {
			_, main, _ := strings.Cut(s.text, "<main")
			require.Failf(t, "the page lacks a text", "%s\nin %d %s:\n%s", text, s.status, s.path, main)
		}
	}
}

// between returns the part of text between before and after.
func between(t *testing.T, text, before, after string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, before)
	require.True(t, found, before)
	value, _, found := strings.Cut(rest, after)
	require.True(t, found, after)
	return value
}

func TestPrivatePagesNeedASession(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"SECRETMARK","source":"SECRETMARK"}`)
	env, _ := cluster.NewEnv(t, "postgres://nobody@127.0.0.1:1/none")
	patterns, err := fn.PagePatterns(env, functions.Catalogue()...)
	require.NoError(t, err)
	public := regexp.MustCompile(`^(GET /console/static/\{file\}|(GET|POST) /console/login|POST /console/(language|logout)|GET /docs.*|GET /openapi.*)$`)
	tried := 0
	for _, pattern := range patterns {
		if public.MatchString(pattern) {
			continue
		}
		tried++
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{id}", sent.Data("task_id").(string), "{do}", "retry", "{path...}", "x").Replace(path)
		got := newBrowser(t, s).do(method, path, "")
		require.True(t, strings.HasPrefix(got.path, "/console/login"), "%s led to %s", pattern, got.path)
		require.NotContains(t, got.text, "SECRETMARK")
	}
	require.Greater(t, tried, 5)
	require.Zero(t, s.Count(`select count(*) from operator_actions`))
}

func TestLogin(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob, eve := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter"), s.NewCaller("eve", "submitter") // ids 1, 2, 3
	t.Run("leads to the requested page", func(t *testing.T) {
		b := newBrowser(t, s)
		require.Equal(t, "/console/login?next=%2Fconsole%2Ftasks%3Fstate%3Dfailed", b.get("/console/tasks?state=failed").path)
		got := b.submit("/console/login", "name", "ann", "password", ann.Password, "next", "/console/tasks?state=failed")
		require.Equal(t, "/console/tasks?state=failed", got.path)
	})
	t.Run("leads only to pages of the console", func(t *testing.T) {
		for _, next := range []string{"https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/api/v1/sms/tasks/pending?app_id=a", "/console/../api"} {
			got := newBrowser(t, s).submit("/console/login", "name", "ann", "password", ann.Password, "next", next)
			require.True(t, strings.HasPrefix(got.path, "/console"), "%s led to %s", next, got.path)
			require.NotContains(t, got.path, "evil")
		}
	})
	t.Run("refuses a wrong password", func(t *testing.T) {
		got := newBrowser(t, s).submit("/console/login", "name", "ann", "password", "wrong")
		require.Equal(t, 401, got.status)
		got.has(t, "The name or the password is wrong.", `value="ann"`)
		require.NotContains(t, got.text, "wrong\"", "the form does not show the password again")
	})
	t.Run("is needed again after the logout", func(t *testing.T) {
		b := logIn(t, ann)
		require.Equal(t, "/console/login", b.submit("/console/logout").path)
		require.Equal(t, "/console/login", b.get("/console").path)
	})
	t.Run("is needed again after the caller is revoked", func(t *testing.T) {
		b := logIn(t, bob)
		require.Equal(t, "/console/tasks", b.get("/console/tasks").path)
		s.Post("/api/v1/admin/callers/2/revoke", "")
		require.Contains(t, b.get("/console/tasks").path, "/console/login")
	})
	t.Run("is needed again after the token is replaced", func(t *testing.T) {
		b := logIn(t, eve)
		s.Post("/api/v1/admin/callers/3/rotate", "")
		require.Contains(t, b.get("/console/tasks").path, "/console/login")
	})
	t.Run("ignores the cookie of another server on this machine", func(t *testing.T) {
		b := logIn(t, ann)
		site, err := url.Parse(s.URL + "/console")
		require.NoError(t, err)
		b.http.Jar.SetCookies(site, []*http.Cookie{{Name: "sendonce", Value: "other", Path: "/console"}})
		require.Equal(t, "/console/tasks", b.get("/console/tasks").path)
	})
	t.Run("refuses a changed cookie", func(t *testing.T) {
		b := logIn(t, ann)
		site, err := url.Parse(s.URL)
		require.NoError(t, err)
		cookie := b.http.Jar.Cookies(site)[0]
		require.Equal(t, "sendonce", cookie.Name)
		require.NotContains(t, cookie.Value, "ann")
		cookie.Value = cookie.Value[:len(cookie.Value)-4] + "AAAA"
		cookie.Path = "/"
		b.http.Jar.SetCookies(site, []*http.Cookie{cookie})
		require.Equal(t, "/console/login", b.get("/console").path)
	})
}

func TestOtherOriginsCannotSubmitForms(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	for _, header := range [][2]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/console/logout", nil)
		require.NoError(t, err)
		req.Header.Set(header[0], header[1])
		res, err := b.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, 403, res.StatusCode)
	}
	require.Equal(t, "/console", b.get("/console").path, "still logged in")
}

func TestSessionCookieIsSecureExceptOnLocalhost(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for host, want := range map[string]string{
		"sms.example.com": "__Host-sendonce=", "127.0.0.1:8000": "sendonce=", "localhost": "sendonce=", "[::1]:80": "sendonce=", "127.0.0.1.evil.example": "__Host-sendonce=",
	} {
		form := url.Values{"name": {s.User}, "password": {s.Password}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/console/login", strings.NewReader(form.Encode()))
		require.NoError(t, err)
		req.Host = host
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		cookie := res.Header.Get("Set-Cookie")
		require.True(t, strings.HasPrefix(cookie, want), "%s: %s", host, cookie)
		require.Contains(t, cookie, "HttpOnly")
		require.Contains(t, cookie, "SameSite=Lax")
		require.Equal(t, strings.HasPrefix(want, "__Host"), strings.Contains(cookie, "Secure"))
	}
}

func TestSearchLeadsToWhatItFinds(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"order-4711"}`)
	id := sent.Data("task_id").(string)
	claimed := s.Get("/api/v1/sms/tasks/pending?app_id=phone-1").List()
	require.Len(t, claimed, 1)
	s.NewCaller("shop", "submitter") // id 1
	b := logIn(t, s)
	task := "/console/tasks/" + id
	for text, path := range map[string]string{
		id:                              task,
		strings.ToUpper(id):             task,
		" order-4711 ":                  task,
		sent.Header.Get("X-Request-Id"): task,
		"13800138000":                   "/console/tasks?phone_number=13800138000",
		"shop":                          "/console/callers/1",
	} {
		require.Equal(t, path, b.get("/console/search?"+url.Values{"q": {text}}.Encode()).path, text)
	}
	b.get("/console/search?q=nothing-of-the-kind").has(t, "Nothing was found.")
	b.get("/console/search?q=%3Cscript%3Ealert(1)%3C%2Fscript%3E").has(t, "&lt;script&gt;")
	b.get("/console/search?q="+strings.Repeat("a", 301)).has(t, "1 to 300 characters")

	other := logIn(t, s.NewCaller("other", "submitter"))
	for _, text := range []string{id, "order-4711"} {
		other.get("/console/search?q="+text).has(t, "Nothing was found.")
	}
}

func TestOverviewCountsAndLinks(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 3 {
		s.SubmitTo("promo")
	}
	s.Post("/api/v1/admin/queues/promo/pause", `{"reason":"<b>down</b>"}`)
	b := logIn(t, s)
	b.get("/console").has(t, `<a href="/console/tasks?queue=promo&amp;state=pending">3</a>`, "&lt;b&gt;down&lt;/b&gt;", `<svg class="plot"`)
	s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"later","queue":"promo","send_at":"`+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`"}`)
	b.get("/console/queues").has(t, `state=pending">3</a>`, `state=scheduled">1</a>`)
	require.Equal(t, "/console", b.get("/").path)
	require.Equal(t, "/console", b.get("/console/").path)
	require.Equal(t, "/docs", newBrowser(t, s).get("/docs/").path)

	viewer := logIn(t, s.NewCaller("viewer", "viewer"))
	viewer.get("/console").has(t, "promo")
	id := s.QueryText(`select id::text from tasks limit 1`)
	require.NotContains(t, viewer.get("/console/tasks/"+id).text, "Cancel the task")
	require.Equal(t, 403, viewer.submit("/console/tasks/"+id+"/cancel", "reason", "x").status)
	require.NotContains(t, logIn(t, s.NewCaller("limited", "viewer", "default")).get("/console").text, "promo")
}

func TestHeldTasksAreResolved(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	var ids []string
	for range 3 {
		ids = append(ids, s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","on_unknown":"hold"}`).Data("task_id").(string))
	}
	s.Get("/api/v1/sms/tasks/pending?app_id=phone-1")
	for _, id := range ids {
		s.Post("/api/v1/sms/report", `{"task_id":"`+id+`","app_id":"phone-1","outcome":"unknown"}`)
	}
	b := logIn(t, s)
	b.get("/console/held").has(t, ids[0], ids[1], ids[2])
	for i, outcome := range []string{"succeeded", "resend", "failed"} {
		got := b.submit("/console/tasks/"+ids[i]+"/resolve", "outcome", outcome, "reason", "asked the customer", "back", "/console/held")
		require.Equal(t, "/console/held?done=resolve", got.path)
		got.has(t, "The task was resolved.")
		require.NotContains(t, got.text, ids[i])
		again := b.submit("/console/tasks/"+ids[i]+"/resolve", "outcome", outcome, "reason", "x", "back", got.path)
		require.Equal(t, 409, again.status)
	}
	for i, state := range []string{"succeeded", "pending", "failed"} {
		require.Equal(t, state, s.Get("/api/v1/sms/task/"+ids[i]).Data("state"))
	}
}

func TestTasksAreFilteredByTimeSpans(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.SubmitTo("default")
	b := logIn(t, s)
	const row, none = "138****8000", "No task matches."
	for query, want := range map[string]string{"from=2h": row, "to=2h": none, "from=2h&to=1h": none, "from=2020-01-31T08:00%2B08:00": row} {
		got := b.get("/console/tasks?state=pending&" + query)
		require.Equal(t, 200, got.status, query)
		got.has(t, want)
		if want == row {
			b.get("/console/tasks?format=csv&"+query).has(t, row)
		}
	}
	got := b.get("/console/bulk/new?state=pending&from=2h")
	got.has(t, "1 tasks match", "2 h ago", `value="action=cancel&amp;from=20`) // from is an instant
	require.Equal(t, 400, b.get("/console/bulk/new?state=pending&from=yesterday").status)
}

func TestBulkChangeShowsItsFilter(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	task := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hello","queue":"promo","source":"shop & <b>"}`).Data("task_id").(string)
	b := logIn(t, s)
	form := b.get("/console/bulk/new?" + url.Values{"state": {"pending"}, "queue": {"promo"}, "source": {"shop & <b>"}, "from": {"2h"}}.Encode())
	query := html.UnescapeString(between(t, form.text, `name="query" value="`, `"`))
	started := b.submit("/console/bulk", "query", query, "expected", "1", "count", "1", "reason", "withdrawn")
	started.has(t, "promo", "shop &amp; &lt;b&gt;", "2 h ago")
	require.Equal(t, 204, s.Tick("sweep").Status)
	got := b.get(strings.Split(started.path, "?")[0])
	got.has(t, `class="state finished"`)
	list := html.UnescapeString(between(t, got.text, `<a href="/console/tasks?`, `"`))
	require.NotContains(t, list, "state=")
	b.get("/console/tasks?"+list).has(t, task)
}

func TestBulkChangeShowsWhyItStopped(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.SubmitTo("promo")
	operator := s.NewCallerWith("ops", `"roles":["admin"],"queues":["promo"]`)
	id := operator.Post("/api/v1/admin/bulk", `{"action":"cancel","filter":{"state":"pending"},"expected":1,"reason":"withdrawn"}`).Data("id").(string)
	s.Do("PUT", "/api/v1/admin/callers/1", `{"roles":["viewer"]}`).RequireOK()
	require.Equal(t, 204, s.Tick("sweep").Status)
	b := logIn(t, s)
	b.get("/console/bulk/"+id).has(t, `class="state stopped"`, "its operator is not an admin any more")
}

func TestBulkChangeHidesThePhoneNumberOfItsFilter(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	started := s.Post("/api/v1/admin/bulk", `{"action":"cancel","filter":{"state":"pending","phone_number":"13800138000"},"expected":0,"reason":"x"}`).RequireOK()
	b := logIn(t, s.NewCaller("viewer", "viewer"))
	for _, path := range []string{"/bulk", "/bulk/" + started.Data("id").(string), "/audit"} {
		got := b.get("/console" + path)
		require.Equal(t, 200, got.status, path)
		require.NotContains(t, got.text, "13800138000", path)
	}
}

func TestExportHasAllTasksAndNoFormulas(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 205 { // more than one page of the API
		s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"SECRETMARK","source":"=cmd()"}`)
	}
	got := logIn(t, s).get("/console/tasks?format=csv")
	require.Equal(t, "text/csv; charset=utf-8", got.header.Get("Content-Type"))
	require.Len(t, strings.Split(strings.TrimSpace(got.text), "\n"), 206)
	require.Contains(t, got.text, ",'=cmd(),")
	require.NotContains(t, got.text, "SECRETMARK")
	require.NotContains(t, got.text, "13800138000")
}

func TestSubmittersReadOnlyTheirOwnTasks(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, other := s.NewCaller("shop", "submitter"), s.NewCaller("other", "submitter")
	own := shop.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Data("task_id").(string)
	foreign := other.Post("/api/v1/sms/send", `{"phone_number":"13800138001","content":"SECRETMARK"}`).Data("task_id").(string)

	require.Equal(t, 404, shop.Get("/api/v1/admin/tasks/"+foreign).Status)
	require.Equal(t, 404, shop.Post("/api/v1/admin/tasks/"+foreign+"/reveal", "").Status)
	require.Equal(t, 403, shop.Get("/api/v1/admin/tasks?caller_id=0").Status)
	list := shop.Get("/api/v1/admin/tasks")
	require.Contains(t, list.Text, own)
	require.NotContains(t, list.Text, foreign)
	shop.Post("/api/v1/admin/tasks/"+own+"/reveal", "").RequireOK()
	require.Equal(t, 403, shop.Post("/api/v1/admin/tasks/"+own+"/cancel", "").Status, "a submitter must use /api/v1/sms/task/{id}/cancel")

	b := logIn(t, shop)
	page := b.get("/console")
	require.Equal(t, "/console/tasks", page.path)
	page.has(t, own)
	require.NotContains(t, page.text, foreign)
	require.Equal(t, 404, b.get("/console/tasks/"+foreign).status)
	for _, path := range []string{"/console/held", "/console/senders"} {
		require.NotContains(t, page.text, `href="`+path+`"`)
		require.NotContains(t, b.get(path).text, foreign)
	}
}

func TestTimelineShowsExtensionsAndDurations(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.SubmitTo("default")
	s.Get("/api/v1/sms/tasks/pending?app_id=phone-1")
	s.Post("/api/v1/sms/tasks/"+id+"/extend", `{"app_id":"phone-1","sending":true}`).RequireOK()
	s.Post("/api/v1/sms/tasks/"+id+"/extend", `{"app_id":"phone-1"}`).RequireOK()
	b := logIn(t, s)
	got := b.get("/console/tasks/" + id)
	got.has(t, "<b>received</b>", "<b>claimed</b>", "<b>extended</b>", `<span class="verdict">sending</span>`, "<small>+", "in 9 min")
	require.NotRegexp(t, `<span class="text">\d{4}-`, got.text, "the new end of the lease is shown as a relative time")
}

// The timeline shows who made a decision. To a submitter, it does not show the name of an operator.
func TestTimelineShowsWhoDecided(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCaller("shop", "submitter")
	id := shop.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","on_unknown":"hold"}`).Data("task_id").(string)
	s.Get("/api/v1/sms/tasks/pending?app_id=phone-1")
	s.Post("/api/v1/sms/report", `{"task_id":"`+id+`","app_id":"phone-1","outcome":"unknown"}`)
	admin, submitter := logIn(t, s), logIn(t, shop)
	admin.submit("/console/tasks/"+id+"/resolve", "outcome", "resend", "reason", "asked <b>")
	got := admin.get("/console/tasks/" + id)
	got.has(t, `<span class="verdict">resolved</span>`, `→ <span class="state pending">pending</span>`, "by <b>"+s.User+"</b>", "asked &lt;b&gt;")
	got = submitter.get("/console/tasks/" + id)
	got.has(t, `→ <span class="state pending">pending</span>`, "by an operator", "asked &lt;b&gt;")
	require.NotContains(t, got.text, s.User)
	require.NotContains(t, shop.Get("/api/v1/admin/tasks/"+id).Text, s.User)
	shop.Post("/api/v1/sms/task/"+id+"/cancel", "")
	got = admin.get("/console/tasks/" + id)
	got.has(t, "by the submitter", `<dd class="text">cancelled</dd>`)
	require.NotContains(t, got.text, "已取消")
	admin.get("/console/tasks").has(t, `<td class="text">cancelled</td>`)
}

// One address floods the login with wrong passwords and with forms that do not end. Visitors from other addresses can log in.
func TestLoginFloodOfOneAddressBlocksNoOthers(t *testing.T) {
	t.Parallel()
	dsn := sandbox.NewDatabase(t)
	_, h := cluster.NewEnv(t, dsn, func(c *settings.Config) { c.TrustedProxies = config.Networks{netip.MustParsePrefix("127.0.0.0/8")} })
	s := cluster.ServeHandler(t, h).Connect(dsn)
	logInFrom := func(address string, body io.Reader) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/console/login", body)
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("X-Forwarded-For", address)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return 0 // the test has ended
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	var attack sync.WaitGroup
	var endless []*io.PipeWriter
	for i := range 60 {
		if i%2 == 0 {
			body, writer := io.Pipe()
			endless = append(endless, writer)
			attack.Go(func() { logInFrom("203.0.113.9", body) })
			_, _ = writer.Write([]byte("name=admin&password="))
			continue
		}
		attack.Go(func() { logInFrom("203.0.113.9", strings.NewReader("name=admin&password=guess")) })
	}
	for range 10 {
		form := "name=" + s.User + "&password=" + s.Password
		require.Equal(t, http.StatusSeeOther, logInFrom("198.51.100.7", strings.NewReader(form)))
	}
	for _, writer := range endless {
		_ = writer.Close()
	}
	attack.Wait()
	require.Equal(t, http.StatusRequestEntityTooLarge, logInFrom("198.51.100.7", strings.NewReader("name="+strings.Repeat("a", 9000))))
}
