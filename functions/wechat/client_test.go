package wechat

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func newTestClient(t *testing.T, base string, timeout time.Duration, shared tokens) *client {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	c := newClient(u, sandbox.WeChatAppID, sandbox.WeChatSecret, timeout, shared)
	t.Cleanup(c.transport.CloseIdleConnections)
	return c
}

// testClient is the client of one instance for a fake WeChat.
func testClient(t *testing.T, w *sandbox.WeChat) *client {
	t.Helper()
	return newTestClient(t, w.URL(), time.Minute, new(memoryTokens))
}

// attempt sends a message as the event function does.
func (c *client) attempt(t *testing.T, m message) result {
	t.Helper()
	token, err := c.token(t.Context())
	require.NoError(t, err)
	return c.send(t.Context(), token, m)
}

func testMessage() message {
	return message{OpenID: "ann", TemplateID: "T1", Page: "pages/booking?id=1", Data: json.RawMessage(`{"thing1":{"value":"瑜伽 <A&B>"}}`),
		MiniprogramState: "formal", Lang: "zh_CN"}
}

// startServer starts a server with the handler h and returns its URL.
func startServer(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func TestSendDeliversAllFields(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	r := testClient(t, w).attempt(t, testMessage())
	require.Equal(t, sent, r.class)
	require.Equal(t, "0", r.code)

	got := w.Delivered()
	require.Len(t, got, 1)
	require.Equal(t, sandbox.WeChatSend{At: got[0].At, OpenID: "ann", TemplateID: "T1", Page: "pages/booking?id=1", State: "formal",
		Lang: "zh_CN", Data: json.RawMessage(`{"thing1":{"value":"瑜伽 <A&B>"}}`), Delivered: true}, got[0])
}

func TestSendRequestFormat(t *testing.T) {
	t.Parallel()
	base := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		answer, err := json.Marshal(map[string]any{"errcode": 0, "errmsg": strings.TrimSpace(fmt.Sprintln(
			r.Method, r.URL.Path, r.URL.Query(), r.Header.Get("Content-Type"), r.Header.Get("Accept-Encoding"), string(body)))})
		if err == nil {
			_, _ = w.Write(answer)
		}
	})
	r := newTestClient(t, base+"/proxied/", time.Minute, nil).send(t.Context(), token{Value: "a+b/c="}, message{
		OpenID: "ann", TemplateID: "T1", Data: json.RawMessage(`{"thing1": {"value": "<"}}`)})
	require.Equal(t, `POST /proxied/cgi-bin/message/subscribe/send map[access_token:[***]] application/json; charset=utf-8 `+
		`{"touser":"ann","template_id":"T1","data":{"thing1":{"value":"<"}}}`, r.message)
}

func TestSendClassifiesErrcodes(t *testing.T) {
	t.Parallel()
	options := sandbox.WeChatOptions{OpenIDs: []string{"ann"}, Templates: []string{"T1"}, Pages: []string{"pages/booking"}}
	oneTime := options
	oneTime.OneTime = true
	spent := options
	spent.Daily = 1
	scripted := func(errcode int) func(*testing.T, *sandbox.WeChat, *client, *message) {
		return func(_ *testing.T, w *sandbox.WeChat, _ *client, _ *message) {
			w.InjectFault(sandbox.WeChatFault{Errcode: errcode})
		}
	}
	changed := func(change func(*message)) func(*testing.T, *sandbox.WeChat, *client, *message) {
		return func(_ *testing.T, _ *sandbox.WeChat, _ *client, m *message) { change(m) }
	}
	for code, c := range map[string]struct {
		options sandbox.WeChatOptions
		arrange func(*testing.T, *sandbox.WeChat, *client, *message)
		want    verdict
		message string
	}{
		"-1":    {options, scripted(-1), verdict{class: transient}, "scripted rid: "},
		"40003": {options, changed(func(m *message) { m.OpenID = "nobody" }), verdict{class: dataRefused}, "invalid openid rid: "},
		"40037": {options, changed(func(m *message) { m.TemplateID = "T9" }), verdict{class: dataRefused, strikesTemplate: true}, "invalid template_id rid: "},
		"41030": {options, changed(func(m *message) { m.Page = "pages/none" }), verdict{class: dataRefused, strikesTemplate: true}, "invalid page rid: "},
		"47003": {options, changed(func(m *message) { m.Data = json.RawMessage(`{"thing1":{"value":""}}`) }),
			verdict{class: dataRefused, strikesTemplate: true}, "argument invalid! data.thing1.value is empty rid: "},
		"43101": {oneTime, nil, verdict{class: noConsent}, "user refuse to accept the msg rid: "},
		"45009": {spent, func(t *testing.T, _ *sandbox.WeChat, c *client, m *message) {
			require.Equal(t, sent, c.attempt(t, *m).class)
		}, verdict{class: quotaSpent}, "reach max api daily quota limit rid: "},
		"45011": {options, scripted(45011), verdict{class: throttled, retryAfter: time.Minute}, "scripted rid: "},
		"48001": {options, scripted(48001), verdict{class: misconfigured}, "scripted rid: "},
		"48004": {options, scripted(48004), verdict{class: misconfigured}, "scripted rid: "},
		"40013": {options, scripted(40013), verdict{class: misconfigured}, "scripted rid: "},
		"99999": {options, scripted(99999), verdict{class: transient}, "scripted rid: "},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := sandbox.NewWeChat(t, c.options)
			client, m := testClient(t, w), testMessage()
			if c.arrange != nil {
				c.arrange(t, w, client, &m)
			}
			before := len(w.Sends())
			r := client.attempt(t, m)
			require.Equal(t, c.want, r.verdict)
			require.Equal(t, code, r.code)
			require.True(t, strings.HasPrefix(r.message, c.message), r.message)

			calls := w.Sends()[before:]
			require.Len(t, calls, 1, "it is sent once")
			require.False(t, calls[0].Delivered)
			require.Equal(t, code, fmt.Sprint(calls[0].Errcode))
			require.Equal(t, 1, w.TokenCalls())
		})
	}
}

func TestSendIsUnknownAfterTheRequestWasWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault   sandbox.WeChatFault
		code    string
		message string
	}{
		"delivered and dropped":       {sandbox.WeChatFault{Drop: true, After: true}, codeNoAnswer, "connection reset by peer"},
		"dropped undelivered":         {sandbox.WeChatFault{Drop: true}, codeNoAnswer, "connection reset by peer"},
		"delivered and silent":        {sandbox.WeChatFault{Delay: time.Hour, After: true}, codeNoAnswer, "timed out after 1s"},
		"silent":                      {sandbox.WeChatFault{Delay: time.Hour}, codeNoAnswer, "timed out after 1s"},
		"delivered and then 502":      {sandbox.WeChatFault{Status: 502, Body: `{"errcode":0}`, After: true}, codeBadAnswer, "answered 502 Bad Gateway"},
		"404":                         {sandbox.WeChatFault{Status: 404}, codeBadAnswer, "answered 404 Not Found"},
		"delivered without JSON":      {sandbox.WeChatFault{Body: "<html>", After: true}, codeBadAnswer, "the answer is not JSON in WeChat's format"},
		"half of the JSON":            {sandbox.WeChatFault{Body: `{"errcode":0`, After: true}, codeBadAnswer, "the answer is not JSON in WeChat's format"},
		"JSON of another server":      {sandbox.WeChatFault{Body: `{"code":0}`, After: true}, codeBadAnswer, "the answer has no errcode"},
		"an errcode that is a string": {sandbox.WeChatFault{Body: `{"errcode":"0"}`, After: true}, codeBadAnswer, "the answer is not JSON in WeChat's format"},
		"no end of JSON":              {sandbox.WeChatFault{Body: `{"errcode":0}` + strings.Repeat(" ", 1<<20), After: true}, codeBadAnswer, "the answer has more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
			client := newTestClient(t, w.URL(), time.Second, new(memoryTokens))
			w.InjectFault(c.fault)
			r := client.attempt(t, testMessage())
			require.Equal(t, verdict{class: unknown}, r.verdict, r.message)
			require.Equal(t, c.code, r.code)
			require.Contains(t, r.message, c.message)
			require.Len(t, w.Sends(), 1)
			require.Equal(t, c.fault.After, w.Sends()[0].Delivered)
		})
	}
}

func TestSendFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	base := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL()+r.URL.Path, http.StatusTemporaryRedirect)
	})
	r := newTestClient(t, base, time.Minute, nil).send(t.Context(), token{Value: "a-token"}, testMessage())
	require.Equal(t, result{verdict{class: unknown}, codeBadAnswer, "answered 307 Temporary Redirect"}, r)
	require.Empty(t, elsewhere.Sends())
}

func TestSendThatWasNotWrittenUsesNoAttempt(t *testing.T) {
	t.Parallel()
	away := verdict{class: away, retryAfter: awayDelay}

	t.Run("connection refused", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		client := testClient(t, w)
		token, err := client.token(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.Stop())
		client.transport.CloseIdleConnections() // the transport would do this a moment later
		r := client.send(t.Context(), token, testMessage())
		require.Equal(t, away, r.verdict)
		require.Equal(t, codeNotSent, r.code)
		require.Contains(t, r.message, "connection refused")
	})

	t.Run("a server without TLS", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		r := newTestClient(t, strings.Replace(w.URL(), "http:", "https:", 1), time.Minute, nil).send(t.Context(), token{Value: "a-token"}, testMessage())
		require.Equal(t, away, r.verdict)
		require.Equal(t, codeNotSent, r.code)
		require.Empty(t, w.Sends())
	})

	t.Run("cancelled context", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		client := testClient(t, w)
		token, err := client.token(t.Context())
		require.NoError(t, err)
		ended, end := context.WithCancel(t.Context())
		end()
		require.Equal(t, result{away, codeNotSent, "context canceled"}, client.send(ended, token, testMessage()))
		require.Empty(t, w.Sends())
	})

	t.Run("invalid data", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		m := testMessage()
		m.Data = json.RawMessage(`{`)
		require.Equal(t, result{verdict{class: dataRefused}, codeBadData, "the message's data is not valid JSON"}, testClient(t, w).attempt(t, m))
		require.Empty(t, w.Sends())
	})
}

func TestCancelledSendIsUnknown(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	client := testClient(t, w)
	token, err := client.token(t.Context())
	require.NoError(t, err)
	w.InjectFault(sandbox.WeChatFault{Delay: time.Hour, After: true})
	ctx, end := context.WithCancel(t.Context())
	got := make(chan result, 1)
	go func() { got <- client.send(ctx, token, testMessage()) }()
	require.Eventually(t, func() bool { return len(w.Delivered()) == 1 }, 10*time.Second, time.Millisecond)
	end()
	require.Equal(t, result{verdict{class: unknown}, codeNoAnswer, "context canceled"}, <-got)
}

// memoryTokens keeps tokens in memory. Clients that share one are like several instances.
type memoryTokens struct {
	mu      sync.Mutex
	value   string
	until   time.Time
	reads   int
	changes int
}

func (n *memoryTokens) Token(context.Context) (token, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	return n.current(), nil
}

func (n *memoryTokens) current() token { return token{n.value, time.Until(n.until)} }

func (n *memoryTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.value != stale.Value {
		return n.current(), nil
	}
	t, err := fetch(ctx)
	if err != nil {
		return token{}, err
	}
	n.value, n.until, n.changes = t.Value, time.Now().Add(t.Left), n.changes+1
	return t, nil
}
