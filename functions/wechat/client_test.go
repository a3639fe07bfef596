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

// newClientOf returns a client of a fake WeChat. The client shares its token with no other client.
func newClientOf(t *testing.T, w *sandbox.WeChat) *client {
	t.Helper()
	return newTestClient(t, w.URL(), time.Minute, new(memoryTokens))
}

// newClientWithToken returns a fake WeChat, a client of it, and the token of the client.
func newClientWithToken(t *testing.T) (*sandbox.WeChat, *client, token) {
	t.Helper()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	c := newClientOf(t, w)
	token, err := c.token(t.Context())
	require.NoError(t, err)
	return w, c, token
}

// sendWithToken gets a token and sends a message, as the function wechat does.
func (c *client) sendWithToken(t *testing.T, m message) result {
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

func TestSendRequestFormat(t *testing.T) {
	t.Parallel()
	base := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		response, err := json.Marshal(map[string]any{"errcode": 0, "errmsg": strings.TrimSpace(fmt.Sprintln(
			r.Method, r.URL.Path, r.URL.Query(), r.Header.Get("Content-Type"), r.Header.Get("Accept-Encoding"), string(body)))})
		if err == nil {
			_, _ = w.Write(response)
		}
	})
	client := newTestClient(t, base+"/proxied/", time.Minute, nil)
	for want, m := range map[string]message{
		`{"touser":"ann","template_id":"T1","page":"pages/booking?id=1","data":{"thing1":{"value":"瑜伽 <A&B>"}},"miniprogram_state":"formal","lang":"zh_CN"}`: testMessage(),
		`{"touser":"ann","template_id":"T1","data":{"thing1":{"value":"<"}}}`:                                                                                {OpenID: "ann", TemplateID: "T1", Data: json.RawMessage(`{"thing1": {"value": "<"}}`)},
	} {
		r := client.send(t.Context(), token{Value: "a+b/c="}, m)
		require.Equal(t, "POST /proxied/cgi-bin/message/subscribe/send map[access_token:[***]] application/json; charset=utf-8 "+want, r.message)
	}
}

func TestSendClassifiesErrcodes(t *testing.T) {
	t.Parallel()
	options := sandbox.WeChatOptions{OpenIDs: []string{"ann"}, Templates: []string{"T1"}, Pages: []string{"pages/booking"}}
	oneTime := options
	oneTime.OneTime = true
	oncePerDay := options
	oncePerDay.Daily = 1
	inject := func(errcode int) func(*testing.T, *sandbox.WeChat, *client, *message) {
		return func(_ *testing.T, w *sandbox.WeChat, _ *client, _ *message) {
			w.InjectFault(sandbox.WeChatFault{Errcode: errcode})
		}
	}
	edit := func(change func(*message)) func(*testing.T, *sandbox.WeChat, *client, *message) {
		return func(_ *testing.T, _ *sandbox.WeChat, _ *client, m *message) { change(m) }
	}
	for code, c := range map[string]struct {
		options sandbox.WeChatOptions
		prepare func(*testing.T, *sandbox.WeChat, *client, *message)
		want    verdict
		message string
	}{
		"-1":    {options, inject(-1), verdict{class: transient}, "injected fault rid: "},
		"40003": {options, edit(func(m *message) { m.OpenID = "nobody" }), verdict{class: dataRefused}, "invalid openid rid: "},
		"40037": {options, edit(func(m *message) { m.TemplateID = "T9" }), verdict{class: dataRefused, strikesTemplate: true}, "invalid template_id rid: "},
		"41030": {options, edit(func(m *message) { m.Page = "pages/none" }), verdict{class: dataRefused, strikesTemplate: true}, "invalid page rid: "},
		"47003": {options, edit(func(m *message) { m.Data = json.RawMessage(`{"thing1":{"value":""}}`) }),
			verdict{class: dataRefused, strikesTemplate: true}, "argument invalid! data.thing1.value is empty rid: "},
		"43101": {oneTime, nil, verdict{class: noConsent}, "user refuse to accept the msg rid: "},
		"45009": {oncePerDay, func(t *testing.T, _ *sandbox.WeChat, c *client, m *message) {
			require.Equal(t, sent, c.sendWithToken(t, *m).class)
		}, verdict{class: quotaSpent}, "reach max api daily quota limit rid: "},
		"45011": {options, inject(45011), verdict{class: throttled, retryAfter: time.Minute}, "injected fault rid: "},
		"48001": {options, inject(48001), verdict{class: misconfigured}, "injected fault rid: "},
		"48004": {options, inject(48004), verdict{class: misconfigured}, "injected fault rid: "},
		"40013": {options, inject(40013), verdict{class: misconfigured}, "injected fault rid: "},
		"99999": {options, inject(99999), verdict{class: transient}, "injected fault rid: "},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := sandbox.NewWeChat(t, c.options)
			client, m := newClientOf(t, w), testMessage()
			if c.prepare != nil {
				c.prepare(t, w, client, &m)
			}
			before := len(w.Sends())
			r := client.sendWithToken(t, m)
			require.Equal(t, c.want, r.verdict)
			require.Equal(t, code, r.code)
			require.True(t, strings.HasPrefix(r.message, c.message), r.message)

			calls := w.Sends()[before:]
			require.Len(t, calls, 1, "the message is sent once")
			require.False(t, calls[0].Delivered)
			require.Equal(t, code, fmt.Sprint(calls[0].Errcode))
			require.Equal(t, 1, w.TokenCalls())
		})
	}
}

func TestSendWithoutValidResponseIsUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault   sandbox.WeChatFault
		code    string
		message string
	}{
		"delivered, then reset":       {sandbox.WeChatFault{Drop: true, DeliverFirst: true}, codeNoResponse, "connection reset by peer"},
		"reset before delivery":       {sandbox.WeChatFault{Drop: true}, codeNoResponse, "connection reset by peer"},
		"delivered, no response":      {sandbox.WeChatFault{Delay: time.Hour, DeliverFirst: true}, codeNoResponse, "timed out after 1s"},
		"no response":                 {sandbox.WeChatFault{Delay: time.Hour}, codeNoResponse, "timed out after 1s"},
		"delivered, then 502":         {sandbox.WeChatFault{Status: 502, Body: `{"errcode":0}`, DeliverFirst: true}, codeBadResponse, "returned 502 Bad Gateway"},
		"404":                         {sandbox.WeChatFault{Status: 404}, codeBadResponse, "returned 404 Not Found"},
		"delivered, not JSON":         {sandbox.WeChatFault{Body: "<html>", DeliverFirst: true}, codeBadResponse, "the response is not JSON in WeChat's format"},
		"truncated JSON":              {sandbox.WeChatFault{Body: `{"errcode":0`, DeliverFirst: true}, codeBadResponse, "the response is not JSON in WeChat's format"},
		"JSON of another server":      {sandbox.WeChatFault{Body: `{"code":0}`, DeliverFirst: true}, codeBadResponse, "the response has no errcode"},
		"an errcode that is a string": {sandbox.WeChatFault{Body: `{"errcode":"0"}`, DeliverFirst: true}, codeBadResponse, "the response is not JSON in WeChat's format"},
		"a response that is too long": {sandbox.WeChatFault{Body: `{"errcode":0}` + strings.Repeat(" ", 1<<20), DeliverFirst: true}, codeBadResponse, "the response has more than 8192 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
			timeout := time.Minute
			if c.fault.Delay > 0 {
				timeout = time.Second
			}
			client := newTestClient(t, w.URL(), timeout, new(memoryTokens))
			w.InjectFault(c.fault)
			r := client.sendWithToken(t, testMessage())
			require.Equal(t, verdict{class: unknown}, r.verdict, r.message)
			require.Equal(t, c.code, r.code)
			require.Contains(t, r.message, c.message)
			require.Len(t, w.Sends(), 1)
			require.Equal(t, c.fault.DeliverFirst, w.Sends()[0].Delivered)
		})
	}
}

func TestSendFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	redirectTarget := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	base := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, redirectTarget.URL()+r.URL.Path, http.StatusTemporaryRedirect)
	})
	r := newTestClient(t, base, time.Minute, nil).send(t.Context(), token{Value: "a-token"}, testMessage())
	require.Equal(t, result{verdict{class: unknown}, codeBadResponse, "returned 307 Temporary Redirect"}, r)
	require.Empty(t, redirectTarget.Sends())
}

func TestUnwrittenRequestIsNotUnknown(t *testing.T) {
	t.Parallel()
	wantAway := verdict{class: away, retryAfter: awayDelay}

	t.Run("connection refused", func(t *testing.T) {
		t.Parallel()
		r := newTestClient(t, "http://127.0.0.1:1", time.Minute, nil).send(t.Context(), token{Value: "a-token"}, testMessage())
		require.Equal(t, wantAway, r.verdict)
		require.Equal(t, codeNotSent, r.code)
		require.Contains(t, r.message, "connection refused")
	})

	t.Run("a server without TLS", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		r := newTestClient(t, strings.Replace(w.URL(), "http:", "https:", 1), time.Minute, nil).send(t.Context(), token{Value: "a-token"}, testMessage())
		require.Equal(t, wantAway, r.verdict)
		require.Equal(t, codeNotSent, r.code)
		require.Empty(t, w.Sends())
	})

	t.Run("cancelled context", func(t *testing.T) {
		t.Parallel()
		w, client, token := newClientWithToken(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, result{wantAway, codeNotSent, "context canceled"}, client.send(ctx, token, testMessage()))
		require.Empty(t, w.Sends())
	})

	t.Run("invalid data", func(t *testing.T) {
		t.Parallel()
		w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		m := testMessage()
		m.Data = json.RawMessage(`{`)
		require.Equal(t, result{verdict{class: dataRefused}, codeBadData, "the message's data is not valid JSON"}, newClientOf(t, w).sendWithToken(t, m))
		require.Empty(t, w.Sends())
	})
}

func TestCancelledSendIsUnknown(t *testing.T) {
	t.Parallel()
	w, client, token := newClientWithToken(t)
	w.InjectFault(sandbox.WeChatFault{Delay: time.Hour, DeliverFirst: true})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan result, 1)
	go func() { got <- client.send(ctx, token, testMessage()) }()
	require.Eventually(t, func() bool { return len(w.Delivered()) == 1 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.Equal(t, result{verdict{class: unknown}, codeNoResponse, "context canceled"}, <-got)
}

// memoryTokens stores the shared token in memory. Clients with the same memoryTokens act as several instances of the function.
type memoryTokens struct {
	mu      sync.Mutex
	value   string
	expires time.Time
	reads   int
}

func (m *memoryTokens) Token(context.Context) (token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.current(), nil
}

func (m *memoryTokens) current() token { return token{Value: m.value, Left: time.Until(m.expires)} }

func (m *memoryTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.value != stale.Value {
		return m.current(), nil
	}
	t, err := fetch(ctx)
	if err != nil {
		return token{}, err
	}
	m.value, m.expires = t.Value, time.Now().Add(t.Left)
	return t, nil
}
