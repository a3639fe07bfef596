package console_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// slowForm submits a form. When the service begins to read the body, slowForm calls beforeBody and then sends the body. If the
// service responds without reading the body, slowForm does neither.
func (b *browser) slowForm(path string, body io.Reader, beforeBody func()) {
	ctx := httptrace.WithClientTrace(b.t.Context(), &httptrace.ClientTrace{Got100Continue: beforeBody})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+path, body)
	require.NoError(b.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Expect", "100-continue")
	if b.http.Jar != nil {
		base, err := url.Parse(b.url)
		require.NoError(b.t, err)
		for _, cookie := range b.http.Jar.Cookies(base) {
			req.AddCookie(cookie)
		}
	}
	connection := &http.Transport{ExpectContinueTimeout: time.Minute}
	defer connection.CloseIdleConnections()
	res, err := connection.RoundTrip(req)
	if err == nil { // else the test has ended
		_ = res.Body.Close()
	}
}

// holdForms submits n forms whose bodies do not end before the test ends. It returns when, for each form, the service reads the body
// or has responded.
func (b *browser) holdForms(n int, path string) {
	b.t.Helper()
	signals := make(chan struct{}, 2*n)
	for range n {
		body, end := io.Pipe()
		b.t.Cleanup(func() { _ = end.Close() })
		go func() {
			b.slowForm(path, body, func() { signals <- struct{}{} })
			signals <- struct{}{}
		}()
	}
	for range n {
		<-signals
	}
}

// A caller may be revoked or changed while the service reads the caller's form.
func TestCallerIsCheckedAgainAfterSlowForm(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := func(c *cluster.Client) string {
		return s.QueryText(`select id::text from callers where name = $1`, c.User)
	}
	const callers = "/api/v1/admin/callers/"
	for name, change := range map[string]func(thief string) cluster.Reply{
		"revoked": func(thief string) cluster.Reply { return s.Post(callers+thief+"/revoke", "") },
		"rotated": func(thief string) cluster.Reply { return s.Post(callers+thief+"/rotate", "") },
		"demoted": func(thief string) cluster.Reply { return s.Do("PUT", callers+thief, `{"roles":["receiver"]}`) },
	} {
		thief, victim := s.NewCaller("thief-"+name, "admin"), s.NewCaller("victim-"+name, "admin")
		b := logIn(t, thief)
		thiefID, victimID := id(thief), id(victim)
		status := 0
		b.slowForm("/console/callers/"+victimID+"/rotate", strings.NewReader("a=b"), func() { status = change(thiefID).Status })
		require.Equal(t, 200, status, name)
		require.Equal(t, 200, victim.Get("/api/v1/admin/callers").Status, "%s: the victim's token must stay valid", name)
	}
}

func TestHalfSentFormsUseNoSlots(t *testing.T) {
	t.Parallel()
	dsn := sandbox.NewDatabase(t)
	_, h := cluster.NewEnv(t, dsn, func(c *settings.Config) { c.MaxCalls, c.CallerShare = 16, 1 })
	s := cluster.ServeHandler(t, h).Connect(dsn)
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	logIn(t, greedy).holdForms(24, "/console/send")
	modest.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).RequireOK()
}

func TestHalfSentLoginsDoNotBlockLogins(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	newBrowser(t, s).holdForms(12, "/console/login")
	logIn(t, s)
}
