package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wechatAnswer is what a call got; status 0 = nothing.
type wechatAnswer struct {
	status  int
	Errcode int
	Errmsg  string
	Token   string `json:"access_token"`
	Expires int    `json:"expires_in"`
	text    string
}

func callWeChat(ctx context.Context, t *testing.T, url, body string) (a wechatAnswer) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Close = true
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return a
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	a.status, a.text = res.StatusCode, string(text)
	if res.Header.Get("Content-Type") == "application/json; encoding=utf-8" {
		require.NoError(t, json.Unmarshal(text, &a), string(text))
	}
	return a
}

func (w *WeChat) tokenFor(t *testing.T, force bool) wechatAnswer {
	t.Helper()
	return callWeChat(t.Context(), t, w.URL()+"/cgi-bin/stable_token", fmt.Sprintf(
		`{"grant_type":"client_credential","appid":%q,"secret":%q,"force_refresh":%t}`, WeChatAppID, WeChatSecret, force))
}

const tea = `{"touser":"ann","template_id":"T1","page":"pages/a?b=c","data":{"thing1":{"value":"Tea <b>"}},"miniprogram_state":"trial","lang":"en_US"}`

func (w *WeChat) sendWith(t *testing.T, token, body string) wechatAnswer {
	t.Helper()
	return callWeChat(t.Context(), t, w.URL()+"/cgi-bin/message/subscribe/send?access_token="+token, body)
}

func TestWeChatDeliversAndKeepsALedger(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := NewWeChat(t, WeChatOptions{Log: func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) }})
	before := time.Now()
	answer := w.sendWith(t, w.tokenFor(t, false).Token, tea)
	require.Zero(t, answer.Errcode)
	require.Regexp(t, "^ok rid: [a-z0-9]{16}$", answer.Errmsg)

	sends := w.Sends()
	require.Len(t, sends, 1)
	require.WithinRange(t, sends[0].At, before, time.Now())
	require.Equal(t, WeChatSend{At: sends[0].At, OpenID: "ann", TemplateID: "T1", Page: "pages/a?b=c", State: "trial", Lang: "en_US",
		Data: json.RawMessage(`{"thing1":{"value":"Tea <b>"}}`), Delivered: true}, sends[0])
	require.Equal(t, sends, w.Delivered())

	ledgerOf := func(secret string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/ledger", nil)
		require.NoError(t, err)
		req.SetBasicAuth("ledger", secret)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	require.Equal(t, http.StatusUnauthorized, ledgerOf("").StatusCode)
	require.Equal(t, http.StatusUnauthorized, ledgerOf(WeChatAppID).StatusCode)
	res := ledgerOf(WeChatSecret)
	var ledger struct {
		TokenCalls int `json:"token_calls"`
		Sends      []map[string]any
	}
	require.NoError(t, json.NewDecoder(res.Body).Decode(&ledger))
	require.Equal(t, 1, ledger.TokenCalls)
	require.Equal(t, "ann", ledger.Sends[0]["openid"])
	require.Equal(t, true, ledger.Sends[0]["delivered"])

	require.NoError(t, w.Stop())
	require.Equal(t, "gave a token \ndelivered to ann: {\"thing1\":{\"value\":\"Tea <b>\"}} (template T1)\n", log.String())
	require.Len(t, w.Sends(), 1)
}

func TestAStableTokenStaysTheSameUntilItIsNearlyOver(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{})
	first := w.tokenFor(t, false)
	require.Equal(t, 7200, first.Expires)
	require.Equal(t, first.Token, w.tokenFor(t, false).Token)
	require.Equal(t, 2, w.TokenCalls())

	short := NewWeChat(t, WeChatOptions{TokenLife: 5 * time.Minute})
	first, second := short.tokenFor(t, false), short.tokenFor(t, false)
	require.NotEqual(t, first.Token, second.Token)
	require.Equal(t, 300, first.Expires)
	for _, token := range []string{first.Token, second.Token} {
		require.Zero(t, short.sendWith(t, token, tea).Errcode, "both are good for a while")
	}
}

func TestABadTokenIsRefused(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{})
	first := w.tokenFor(t, false).Token
	second := w.tokenFor(t, true).Token
	require.Equal(t, 40001, w.sendWith(t, first, tea).Errcode)
	require.Zero(t, w.sendWith(t, second, tea).Errcode)
	w.ExpireTokens()
	require.Equal(t, 42001, w.sendWith(t, second, tea).Errcode)
	require.Zero(t, w.sendWith(t, w.tokenFor(t, false).Token, tea).Errcode)
	require.Equal(t, 40014, w.sendWith(t, "made-up", tea).Errcode)
	require.Equal(t, 41001, w.sendWith(t, "", tea).Errcode)
	require.Len(t, w.Sends(), 4, "nothing is kept of a client that never had a token")

	for body, want := range map[string]int{
		`{"grant_type":"client_credential","appid":"other","secret":"` + WeChatSecret + `"}`: 40013,
		`{"grant_type":"client_credential","appid":"` + WeChatAppID + `","secret":"other"}`:  40125,
		`{"appid":"` + WeChatAppID + `"}`: 40002,
		`{`:                               47001,
	} {
		require.Equal(t, want, callWeChat(t.Context(), t, w.URL()+"/cgi-bin/stable_token", body).Errcode, body)
	}
}

func TestWeChatRefusesWhatTheRealOneRefuses(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{OpenIDs: []string{"ann"}, Templates: []string{"T1"}, Pages: []string{"pages/a"}, OneTime: true})
	w.Grant("ann", "T1", 1)
	token := w.tokenFor(t, false).Token
	for _, c := range []struct {
		replace, with string
		want          int
		says          string
	}{
		{`"ann"`, `"bob"`, 40003, "invalid openid"},
		{`"ann"`, `""`, 40003, "invalid openid"},
		{`"T1"`, `"T2"`, 40037, "invalid template_id"},
		{`pages/a`, `pages/b`, 41030, "invalid page"},
		{`"Tea <b>"`, `"` + strings.Repeat("茶", 21) + `"`, 47003, "argument invalid! data.thing1.value invalid"},
		{`"Tea <b>"`, `""`, 47003, "argument invalid! data.thing1.value is empty"},
		{`{"thing1":{"value":"Tea <b>"}}`, `{}`, 47003, "argument invalid! data.keyword.value is empty"},
		{`}`, `]`, 47001, "data format error"},
	} {
		answer := w.sendWith(t, token, strings.ReplaceAll(tea, c.replace, c.with))
		require.Equal(t, c.want, answer.Errcode, "%s", c.with)
		require.True(t, strings.HasPrefix(answer.Errmsg, c.says+" rid: "), answer.Errmsg)
	}
	require.Empty(t, w.Delivered())
	require.Len(t, w.Sends(), 8)

	require.Zero(t, w.sendWith(t, token, tea).Errcode)
	require.Equal(t, 43101, w.sendWith(t, token, tea).Errcode, "the grant is used")
	require.Len(t, w.Delivered(), 1)
}

func TestTheLedgerOfWeChatKeepsTheNewestCalls(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{Keep: 2})
	token := w.tokenFor(t, false).Token
	for _, openID := range []string{"ann", "bob", "cat"} {
		require.Zero(t, w.sendWith(t, token, strings.ReplaceAll(tea, "ann", openID)).Errcode)
	}
	sends := w.Sends()
	require.Len(t, sends, 2)
	require.Equal(t, []string{"bob", "cat"}, []string{sends[0].OpenID, sends[1].OpenID})
}

func TestTheDailyQuotaOfWeChatIsForAll(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{Daily: 1})
	token := w.tokenFor(t, false).Token
	require.Zero(t, w.sendWith(t, token, tea).Errcode)
	require.Equal(t, 45009, w.sendWith(t, token, tea).Errcode)
	w.AllowPerDay(2)
	require.Zero(t, w.sendWith(t, token, tea).Errcode)
}

func TestFaultsOfWeChat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault     WeChatFault
		want      wechatAnswer
		delivered bool
		says      string
	}{
		"an errcode":               {WeChatFault{Errcode: 45011}, wechatAnswer{status: 200, Errcode: 45011}, false, "answered errcode 45011"},
		"dropped before delivery":  {WeChatFault{Drop: true}, wechatAnswer{}, false, "not answered"},
		"dropped after delivery":   {WeChatFault{Drop: true, After: true}, wechatAnswer{}, true, "not answered"},
		"502 after delivery":       {WeChatFault{Status: 502, After: true}, wechatAnswer{status: 502}, true, `answered 502 ""`},
		"no JSON after delivery":   {WeChatFault{Body: "<html>", After: true}, wechatAnswer{status: 200}, true, `answered 200 "<html>"`},
		"a short delay":            {WeChatFault{Delay: time.Millisecond}, wechatAnswer{status: 200}, true, "delayed for 1ms"},
		"busy though it delivered": {WeChatFault{Errcode: -1, After: true}, wechatAnswer{status: 200, Errcode: -1}, true, "answered errcode -1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := NewWeChat(t, WeChatOptions{})
			token := w.tokenFor(t, false).Token
			c.fault.Times = 1
			w.InjectFault(c.fault)
			answer := w.sendWith(t, token, tea)
			require.Equal(t, c.want, wechatAnswer{status: answer.status, Errcode: answer.Errcode})
			require.Equal(t, c.delivered, w.Sends()[0].Delivered)
			require.Equal(t, c.says, w.Sends()[0].Fault)

			require.Equal(t, 200, w.sendWith(t, token, tea).status, "one call was hit")
			require.True(t, w.Sends()[1].Delivered)
			require.Empty(t, w.Sends()[1].Fault)
		})
	}
}

func TestAFaultHitsTheCallsItNames(t *testing.T) {
	t.Parallel()
	w := NewWeChat(t, WeChatOptions{})
	token := w.tokenFor(t, false).Token
	w.InjectFault(WeChatFault{OpenID: "ann", Errcode: 1})
	w.InjectFault(WeChatFault{TemplateID: "T2", Errcode: 2, Times: 2})
	w.InjectFault(WeChatFault{Tokens: true, Errcode: 3})
	errcode := func(openID, template string) int {
		body := strings.NewReplacer("ann", openID, "T1", template).Replace(tea)
		return w.sendWith(t, token, body).Errcode
	}
	require.Equal(t, []int{1, 1, 0, 2, 2, 0}, []int{
		errcode("ann", "T1"), errcode("ann", "T2"), errcode("bob", "T1"), errcode("bob", "T2"), errcode("bob", "T2"), errcode("bob", "T2"),
	})
	require.Equal(t, 3, w.tokenFor(t, false).Errcode)
	w.ClearFaults()
	require.Zero(t, errcode("ann", "T1"))
	require.Equal(t, token, w.tokenFor(t, false).Token)
}

func TestADelayedCallGoesOnWhenWeChatIsMendedOrStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after bool
		end   func(*WeChat) error
	}{
		"mended before delivery":  {false, func(w *WeChat) error { w.ClearFaults(); return nil }},
		"mended after delivery":   {true, func(w *WeChat) error { w.ClearFaults(); return nil }},
		"stopped before delivery": {false, (*WeChat).Stop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := NewWeChat(t, WeChatOptions{})
			token := w.tokenFor(t, false).Token
			w.InjectFault(WeChatFault{Delay: time.Hour, After: c.after})
			ctx, hangUp := context.WithCancel(t.Context())
			var call sync.WaitGroup
			call.Go(func() {
				callWeChat(ctx, t, w.URL()+"/cgi-bin/message/subscribe/send?access_token="+token, tea)
			})
			require.Eventually(t, func() bool { return len(w.Sends()) == 1 }, 10*time.Second, time.Millisecond)
			if c.after {
				require.Eventually(t, func() bool { return len(w.Delivered()) == 1 }, 10*time.Second, time.Millisecond)
			} else {
				require.Empty(t, w.Delivered())
			}
			hangUp()
			call.Wait()
			require.NoError(t, c.end(w))
			require.Eventually(t, func() bool { return len(w.Delivered()) == 1 }, 10*time.Second, time.Millisecond,
				"what arrived is delivered though nobody waits for the answer")
		})
	}
}

func TestAStoppedWeChatCanBeSucceededAtItsURL(t *testing.T) {
	t.Parallel()
	first := NewWeChat(t, WeChatOptions{})
	require.NoError(t, first.Stop())
	require.Zero(t, first.tokenFor(t, false).status)
	second := NewWeChat(t, WeChatOptions{Port: first.Port()})
	require.Equal(t, first.URL(), second.URL())
	require.NotEmpty(t, first.tokenFor(t, false).Token)
	require.Zero(t, first.TokenCalls())
	_, err := StartWeChat(t.Context(), WeChatOptions{Port: second.Port()})
	require.ErrorContains(t, err, "address already in use")
}
