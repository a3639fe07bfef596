package console_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/fn"
)

// browser is a visitor: it keeps cookies and follows redirects.
type browser struct {
	t    *testing.T
	url  string
	http *http.Client
}

// newBrowser returns a visitor who has not logged in.
func newBrowser(t *testing.T, s *cluster.Client) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &browser{t, s.URL, &http.Client{Jar: jar}}
}

// logIn returns a visitor who has logged in.
func logIn(t *testing.T, s *cluster.Client, name, password string) *browser {
	t.Helper()
	b := newBrowser(t, s)
	shown := b.submit("/console/login", "name", name, "password", password)
	require.Equal(t, 200, shown.status, shown.text)
	require.NotContains(t, shown.path, "login")
	return b
}

// shown is a page as the visitor got it.
type shown struct {
	status int
	path   string // after redirects
	text   string
	header http.Header
}

func (b *browser) get(path string) shown {
	b.t.Helper()
	return b.do(http.MethodGet, path, nil)
}

// submit submits a form, whose fields are given as name, value, name, value.
func (b *browser) submit(path string, fields ...string) shown {
	b.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	return b.do(http.MethodPost, path, form)
}

func (b *browser) do(method, path string, form url.Values) shown {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(form.Encode()))
	require.NoError(b.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := b.http.Do(req)
	require.NoError(b.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return shown{res.StatusCode, res.Request.URL.RequestURI(), string(text), res.Header}
}

// has fails unless the page has all the texts, in any order.
func (s shown) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(s.text, text) {
			_, main, _ := strings.Cut(s.text, "<main")
			require.Failf(t, "the page lacks a text", "%s\nin %d %s:\n%s", text, s.status, s.path, main)
		}
	}
}

func TestVisitorsWithoutSessionSeeOnlyTheLogin(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"SECRETMARK","source":"SECRETMARK"}`)
	env, _ := cluster.NewEnv(t, "postgres://nobody@127.0.0.1:1/none")
	patterns, err := fn.PagePatterns(env, functions.Catalogue()...)
	require.NoError(t, err)
	open := regexp.MustCompile(`^(GET /console/static/\{file\}|(GET|POST) /console/login|POST /console/(language|logout)|GET /docs.*|GET /openapi.*)$`)
	tried := 0
	for _, pattern := range patterns {
		if open.MatchString(pattern) {
			continue
		}
		tried++
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{id}", sent.Data("task_id").(string), "{do}", "retry", "{path...}", "x").Replace(path)
		got := newBrowser(t, s).do(method, path, nil)
		require.True(t, strings.HasPrefix(got.path, "/console/login"), "%s led to %s", pattern, got.path)
		require.NotContains(t, got.text, "SECRETMARK")
	}
	require.Greater(t, tried, 5)
	require.Zero(t, s.Count(`select count(*) from operator_actions`))
}

func TestLogin(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann := s.Post("/api/v1/admin/callers", `{"name":"ann","roles":["submitter"]}`)
	token := ann.Data("token").(string)

	t.Run("leads to the page that was asked for", func(t *testing.T) {
		b := newBrowser(t, s)
		require.Equal(t, "/console/login?next=%2Fconsole%2Ftasks%3Fstate%3Dfailed", b.get("/console/tasks?state=failed").path)
		got := b.submit("/console/login", "name", "ann", "password", token, "next", "/console/tasks?state=failed")
		require.Equal(t, "/console/tasks?state=failed", got.path)
	})
	t.Run("leads to no other site", func(t *testing.T) {
		for _, next := range []string{"https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/api/v1/sms/tasks/pending?app_id=a", "/console/../api"} {
			got := newBrowser(t, s).submit("/console/login", "name", "ann", "password", token, "next", next)
			require.True(t, strings.HasPrefix(got.path, "/console"), "%s led to %s", next, got.path)
			require.NotContains(t, got.path, "evil")
		}
	})
	t.Run("with a wrong password says so", func(t *testing.T) {
		got := newBrowser(t, s).submit("/console/login", "name", "ann", "password", "wrong")
		require.Equal(t, 401, got.status)
		got.has(t, "The name or the password is wrong.", `value="ann"`)
		require.NotContains(t, got.text, "wrong\"")
	})
	t.Run("ends with log out", func(t *testing.T) {
		b := logIn(t, s, "ann", token)
		require.Equal(t, "/console/login", b.submit("/console/logout").path)
		require.Equal(t, "/console/login", b.get("/console").path)
	})
	t.Run("ends when the caller is revoked", func(t *testing.T) {
		made := s.Post("/api/v1/admin/callers", `{"name":"bob","roles":["submitter"]}`)
		b := logIn(t, s, "bob", made.Data("token").(string))
		require.Equal(t, "/console/tasks", b.get("/console/tasks").path)
		s.Post("/api/v1/admin/callers/"+made.Data("id").(string)+"/revoke", "")
		require.Contains(t, b.get("/console/tasks").path, "/console/login")
	})
	t.Run("ends when the token is replaced", func(t *testing.T) {
		made := s.Post("/api/v1/admin/callers", `{"name":"eve","roles":["submitter"]}`)
		b := logIn(t, s, "eve", made.Data("token").(string))
		s.Post("/api/v1/admin/callers/"+made.Data("id").(string)+"/rotate", "")
		require.Contains(t, b.get("/console/tasks").path, "/console/login")
	})
	t.Run("needs a cookie that nobody changed", func(t *testing.T) {
		b := logIn(t, s, "ann", token)
		at, err := url.Parse(s.URL)
		require.NoError(t, err)
		cookie := b.http.Jar.Cookies(at)[0]
		require.Equal(t, "sendonce", cookie.Name)
		require.NotContains(t, cookie.Value, "ann")
		cookie.Value = cookie.Value[:len(cookie.Value)-4] + "AAAA"
		cookie.Path = "/"
		b.http.Jar.SetCookies(at, []*http.Cookie{cookie})
		require.Equal(t, "/console/login", b.get("/console").path)
	})
}

// Pages of other origins cannot act with the session of a visitor, not even those that may call the API.
func TestOtherOriginsCannotSubmitForms(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s, s.User, s.Password)
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

func TestSessionCookieIsSecureBeyondThisMachine(t *testing.T) {
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
