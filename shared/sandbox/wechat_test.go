package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type wechatResponse struct {
	Errcode int
	Errmsg  string
	Token   string `json:"access_token"`
}

// callWeChat makes a call. If ctx ends before the response, callWeChat returns the zero response.
func callWeChat(ctx context.Context, t *testing.T, url, body string) (response wechatResponse) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Close = true
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil && ctx.Err() != nil {
		return response
	}
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, "application/json; encoding=utf-8", res.Header.Get("Content-Type"))
	require.NoError(t, json.NewDecoder(res.Body).Decode(&response))
	return response
}

func (w *WeChat) requestToken(t *testing.T) wechatResponse {
	t.Helper()
	return callWeChat(t.Context(), t, w.URL()+"/cgi-bin/stable_token", fmt.Sprintf(
		`{"grant_type":"client_credential","appid":%q,"secret":%q}`, WeChatAppID, WeChatSecret))
}

const tea = `{"touser":"ann","template_id":"T1","page":"pages/a?b=c","data":{"thing1":{"value":"Tea <b>"}},"miniprogram_state":"trial","lang":"en_US"}`

func (w *WeChat) sendWith(t *testing.T, token, body string) wechatResponse {
	t.Helper()
	return callWeChat(t.Context(), t, w.URL()+"/cgi-bin/message/subscribe/send?access_token="+token, body)
}

func TestWeChatDeliversAndKeepsALedger(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := NewWeChat(t, WeChatOptions{Log: func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) }})
	before := time.Now()
	response := w.sendWith(t, w.requestToken(t).Token, tea)
	require.Zero(t, response.Errcode)
	require.Regexp(t, "^ok rid: [a-z0-9]{16}$", response.Errmsg)

	sends := w.Sends()
	require.Len(t, sends, 1)
	require.WithinRange(t, sends[0].At, before, time.Now())
	require.Equal(t, WeChatSend{At: sends[0].At, OpenID: "ann", TemplateID: "T1", Page: "pages/a?b=c", State: "trial", Lang: "en_US",
		Data: json.RawMessage(`{"thing1":{"value":"Tea <b>"}}`), Delivered: true}, sends[0])
	require.Equal(t, sends, w.Delivered())

	getLedger := func(secret string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/ledger", nil)
		require.NoError(t, err)
		req.SetBasicAuth("ledger", secret)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	require.Equal(t, http.StatusUnauthorized, getLedger("").StatusCode)
	require.Equal(t, http.StatusUnauthorized, getLedger(WeChatAppID).StatusCode)
	res := getLedger(WeChatSecret)
	var ledger struct {
		TokenCalls int `json:"token_calls"`
		Sends      []map[string]any
	}
	require.NoError(t, json.NewDecoder(res.Body).Decode(&ledger))
	require.Equal(t, 1, ledger.TokenCalls)
	require.Equal(t, "ann", ledger.Sends[0]["openid"])
	require.Equal(t, true, ledger.Sends[0]["delivered"])

	require.NoError(t, w.Stop())
	require.Equal(t, "token call \ndelivered to ann: {\"thing1\":{\"value\":\"Tea <b>\"}} (template T1)\n", log.String())
	require.Len(t, w.Sends(), 1)
}

func TestWeChatLedgerKeepsNewestCalls(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{Keep: 2})
	token := w.requestToken(t).Token
	for _, openID := range []string{"ann", "bob", "cat"} {
		require.Zero(t, w.sendWith(t, token, strings.ReplaceAll(tea, "ann", openID)).Errcode)
	}
	sends := w.Sends()
	require.Len(t, sends, 2)
	require.Equal(t, []string{"bob", "cat"}, []string{sends[0].OpenID, sends[1].OpenID})
}

func TestFaultSelectsCalls(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{})
	token := w.requestToken(t).Token
	w.InjectFault(WeChatFault{OpenID: "ann", Errcode: 1})
	w.InjectFault(WeChatFault{Errcode: 2, Times: 2})
	w.InjectFault(WeChatFault{TokenCalls: true, Errcode: 3})
	errcode := func(openID string) int {
		return w.sendWith(t, token, strings.ReplaceAll(tea, "ann", openID)).Errcode
	}
	require.Equal(t, []int{1, 1, 2, 2, 0}, []int{errcode("ann"), errcode("ann"), errcode("bob"), errcode("bob"), errcode("bob")})
	require.Equal(t, 3, w.requestToken(t).Errcode)
	w.ClearFaults()
	require.Zero(t, errcode("ann"))
	require.Equal(t, token, w.requestToken(t).Token)
}

func TestDelayEndsWithClearFaultsOrStop(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*WeChat) error{
		"cleared": func(w *WeChat) error { w.ClearFaults(); return nil },
		"stopped": (*WeChat).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := NewWeChat(t, WeChatOptions{})
			token := w.requestToken(t).Token
			w.InjectFault(WeChatFault{Delay: time.Hour})
			ctx, hangUp := context.WithCancel(t.Context())
			var call sync.WaitGroup
			call.Go(func() {
				callWeChat(ctx, t, w.URL()+"/cgi-bin/message/subscribe/send?access_token="+token, tea)
			})
			require.Eventually(t, func() bool { return len(w.Sends()) == 1 }, time.Minute, 10*time.Millisecond)
			require.Empty(t, w.Delivered())
			hangUp()
			call.Wait()
			require.NoError(t, end(w))
			require.Eventually(t, func() bool { return len(w.Delivered()) == 1 }, time.Minute, 10*time.Millisecond,
				"the message is delivered although the caller is gone")
		})
	}
}
