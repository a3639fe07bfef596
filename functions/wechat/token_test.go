package wechat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestTokenIsFetchedOnceForAllInstances(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	shared := new(memoryTokens)
	instances := []*client{newTestClient(t, w.URL(), time.Minute, shared), newTestClient(t, w.URL(), time.Minute, shared), newTestClient(t, w.URL(), time.Minute, shared)}
	sendFromAll := func() {
		var all sync.WaitGroup
		for _, c := range instances {
			for range 10 {
				all.Go(func() {
					token, err := c.token(t.Context())
					if err != nil {
						t.Errorf("no token: %v", err)
						return
					}
					if r := c.send(t.Context(), token, testMessage()); r.class != sent {
						t.Errorf("%s %s", r.code, r.message)
					}
				})
			}
		}
		all.Wait()
	}
	sendFromAll()
	require.Equal(t, 1, w.TokenCalls())
	require.Equal(t, 3, shared.reads, "each instance keeps its own copy")
	require.Len(t, w.Delivered(), 30)

	w.ExpireTokens()
	sendFromAll()
	require.Equal(t, 2, w.TokenCalls(), "only one instance refreshed the token, and only once")
	require.Len(t, w.Delivered(), 60)
}

func TestSendReplacesRefusedToken(t *testing.T) {
	t.Parallel()
	for code, c := range map[string]struct {
		invalidate func(*testing.T, *sandbox.WeChat) // invalidates the issued token
		wrongToken string                            // used instead of the issued token
	}{
		"42001": {func(_ *testing.T, w *sandbox.WeChat) { w.ExpireTokens() }, ""},
		"40001": {forceRefresh, ""},
		"40014": {nil, "malformed"},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w, client, token := newClientWithToken(t)
			if c.invalidate != nil {
				c.invalidate(t, w)
			} else {
				token.Value = c.wrongToken
			}
			r := client.send(t.Context(), token, testMessage())
			require.Equal(t, verdict{class: sent}, r.verdict, r.message)
			require.Len(t, w.Delivered(), 1)
			if code == "40014" {
				return // the fake WeChat does not record calls with a token that it did not issue
			}
			sends := w.Sends()
			require.Len(t, sends, 2)
			require.Equal(t, code, fmt.Sprint(sends[0].Errcode))
		})
	}
}

// forceRefresh makes WeChat revoke the token and issue a new one, as another program with the same app could.
func forceRefresh(t *testing.T, w *sandbox.WeChat) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"grant_type": "client_credential", "appid": sandbox.WeChatAppID, "secret": sandbox.WeChatSecret, "force_refresh": true})
	require.NoError(t, err)
	res, err := http.Post(w.URL()+"/cgi-bin/stable_token", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	res.Body.Close()
}

func TestSendStopsAtSecondRefusedToken(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	w.InjectFault(sandbox.WeChatFault{Errcode: 40001})
	client := newClientOf(t, w)
	r := client.sendWithToken(t, testMessage())
	require.Equal(t, verdict{class: tokenRefused, retryAfter: time.Minute}, r.verdict)
	require.Equal(t, "40001", r.code)
	require.Len(t, w.Sends(), 2)

	w.ClearFaults()
	require.Equal(t, sent, client.sendWithToken(t, testMessage()).class)
}

func TestTokenIsRenewedBeforeItExpires(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{TokenLife: renewBefore})
	client := newClientOf(t, w)
	first, err := client.token(t.Context())
	require.NoError(t, err)
	second, err := client.token(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, first.Value, second.Value)
	for _, token := range []token{first, second} {
		require.Equal(t, sent, client.send(t.Context(), token, testMessage()).class, "WeChat accepts both tokens")
	}
	require.Equal(t, 2, w.TokenCalls())
}

func TestTokenErrorReleasesTheTask(t *testing.T) {
	t.Parallel()
	wantAway := verdict{class: away, retryAfter: awayDelay}
	for name, c := range map[string]struct {
		options sandbox.WeChatOptions
		fault   sandbox.WeChatFault
		want    verdict
		code    string
		message string
	}{
		"the app id is wrong":             {sandbox.WeChatOptions{AppID: "wx-other"}, sandbox.WeChatFault{}, verdict{class: misconfigured}, "40013", "errcode 40013: invalid appid rid: "},
		"the secret is wrong":             {sandbox.WeChatOptions{Secret: "other"}, sandbox.WeChatFault{}, verdict{class: misconfigured}, "40125", "errcode 40125: invalid appsecret rid: "},
		"the secret is wrong (40001)":     {sandbox.WeChatOptions{}, sandbox.WeChatFault{Errcode: 40001}, verdict{class: misconfigured}, "40001", "errcode 40001: "},
		"IP address not in the allowlist": {sandbox.WeChatOptions{}, sandbox.WeChatFault{Errcode: 40164}, verdict{class: misconfigured}, "40164", "errcode 40164: "},
		"daily quota used up":             {sandbox.WeChatOptions{}, sandbox.WeChatFault{Errcode: 45009}, verdict{class: quotaSpent}, "45009", "errcode 45009: "},
		"rate limited":                    {sandbox.WeChatOptions{}, sandbox.WeChatFault{Errcode: 45011}, verdict{class: throttled, retryAfter: time.Minute}, "45011", "errcode 45011: "},
		"WeChat is busy":                  {sandbox.WeChatOptions{}, sandbox.WeChatFault{Errcode: -1}, wantAway, "-1", "errcode -1: "},
		"connection dropped":              {sandbox.WeChatOptions{}, sandbox.WeChatFault{Drop: true}, wantAway, codeNoToken, ""},
		"no response":                     {sandbox.WeChatOptions{}, sandbox.WeChatFault{Delay: time.Hour}, wantAway, codeNoToken, "timed out after 1s"},
		"error of a gateway":              {sandbox.WeChatOptions{}, sandbox.WeChatFault{Status: 502}, wantAway, codeNoToken, "returned 502 Bad Gateway"},
		"not JSON":                        {sandbox.WeChatOptions{}, sandbox.WeChatFault{Body: "<html>"}, wantAway, codeNoToken, "the response is not JSON in WeChat's format"},
		"neither token nor errcode":       {sandbox.WeChatOptions{}, sandbox.WeChatFault{Body: `{"errcode":0}`}, wantAway, codeNoToken, "the response has neither a token nor an errcode"},
		"an expired token":                {sandbox.WeChatOptions{}, sandbox.WeChatFault{Body: `{"access_token":"t","expires_in":0}`}, wantAway, codeNoToken, "the response has neither a token nor an errcode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sandbox.NewWeChat(t, c.options)
			if c.fault != (sandbox.WeChatFault{}) {
				c.fault.TokenCalls = true
				w.InjectFault(c.fault)
			}
			shared := new(memoryTokens)
			_, err := newTestClient(t, w.URL(), time.Second, shared).token(t.Context())
			require.Error(t, err)
			r := tokenErrorResult(err)
			require.Equal(t, c.want, r.verdict, r.message)
			require.Equal(t, c.code, r.code)
			require.True(t, strings.HasPrefix(r.message, "get an access token: "+c.message), r.message)
			require.Empty(t, shared.value)
			require.Empty(t, w.Sends())
		})
	}
}

func TestFailedTokenReplacementReleasesTheTask(t *testing.T) {
	t.Parallel()
	w, client, token := newClientWithToken(t)
	w.ExpireTokens()
	w.InjectFault(sandbox.WeChatFault{TokenCalls: true, Drop: true, Times: 1})
	r := client.send(t.Context(), token, testMessage())
	require.Equal(t, verdict{class: away, retryAfter: awayDelay}, r.verdict)
	require.Equal(t, codeNoToken, r.code)
	require.Equal(t, sent, client.sendWithToken(t, testMessage()).class)
}

// failingTokens fails when the shared token is read.
type failingTokens struct{ *memoryTokens }

func (failingTokens) Token(context.Context) (token, error) {
	return token{}, errors.New("the database is unavailable")
}

func TestTokenIsNotFetchedIfTheStoreFails(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	_, err := newTestClient(t, w.URL(), time.Minute, failingTokens{}).token(t.Context())
	require.Equal(t, result{verdict{class: away, retryAfter: awayDelay}, codeNoToken, "the database is unavailable"}, tokenErrorResult(err))
	require.Zero(t, w.TokenCalls())
}

func TestTokenIsFetchedWithoutForceRefresh(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 1)
	base := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- r.URL.String() + " " + string(body)
		fmt.Fprint(w, `{"access_token":"t","expires_in":9999999999999999}`)
	})
	got, err := newTestClient(t, base, time.Minute, new(memoryTokens)).token(t.Context())
	require.NoError(t, err)
	require.InDelta(t, maxTokenLife, got.Left, float64(time.Minute), "expires_in is limited")
	require.Equal(t, fmt.Sprintf("/cgi-bin/stable_token {\"grant_type\":\"client_credential\",\"appid\":%q,\"secret\":%q}\n",
		sandbox.WeChatAppID, sandbox.WeChatSecret), <-requests)
}
