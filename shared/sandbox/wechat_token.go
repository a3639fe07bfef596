package sandbox

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"
)

// If the newest token expires within renewBefore, the next call returns a new token. The old token stays valid until it
// expires.
const renewBefore = 5 * time.Minute

// ExpireTokens expires all issued access tokens: later calls with them are refused with errcode 42001.
func (w *WeChat) ExpireTokens() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tokens {
		t.expiresAt = time.Time{}
	}
}

// token is POST /cgi-bin/stable_token.
func (w *WeChat) token(rw http.ResponseWriter, r *http.Request) {
	var body struct {
		GrantType    string `json:"grant_type"`
		AppID        string `json:"appid"`
		Secret       string `json:"secret"`
		ForceRefresh bool   `json:"force_refresh"`
	}
	err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, wechatTokenBody)).Decode(&body)
	w.mu.Lock()
	w.tokenCalls++
	f, cleared := w.nextFault(func(f WeChatFault) bool { return f.TokenCalls })
	w.mu.Unlock()

	w.serveWithFault(rw, f, cleared, func(execute bool) any {
		switch {
		case !execute:
			return nil
		case err != nil:
			return wechatResult{47001, "data format error"}
		case body.GrantType != "client_credential":
			return wechatResult{40002, "invalid grant_type"}
		case body.AppID != w.o.AppID:
			return wechatResult{40013, "invalid appid"}
		case body.Secret != w.o.Secret:
			return wechatResult{40125, "invalid appsecret"}
		}
		// Only calls with the right secret are logged, with the fault f if there is one.
		w.logf("token call %s", f)
		return w.currentToken(body.ForceRefresh)
	})
}

// currentToken returns the newest token. If force is set or the newest token expires within renewBefore, it issues and
// returns a new token.
func (w *WeChat) currentToken(force bool) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := w.tokens[w.newest]
	if newest != nil && force {
		newest.replaced = true
	}
	if newest == nil || force || time.Until(newest.expiresAt) <= renewBefore {
		w.newest, newest = "token-"+rand.Text(), &wechatToken{expiresAt: time.Now().Add(w.o.TokenLife)}
		w.tokens[w.newest] = newest
	}
	return map[string]any{"access_token": w.newest, "expires_in": int(time.Until(newest.expiresAt).Round(time.Second).Seconds())}
}

// checkKnown refuses an access token that was never issued.
func (w *WeChat) checkKnown(value string) wechatResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case value == "":
		return wechatResult{41001, "access_token missing"}
	case w.tokens[value] == nil:
		return wechatResult{40014, "invalid access_token"}
	}
	return wechatResult{}
}

// checkValid refuses a token that was replaced or has expired. The caller holds w.mu.
func (w *WeChat) checkValid(value string) wechatResult {
	switch t := w.tokens[value]; {
	case t.replaced:
		return wechatResult{40001, "invalid credential, access_token is invalid or not latest"}
	case !time.Now().Before(t.expiresAt):
		return wechatResult{42001, "access_token expired"}
	}
	return wechatResult{}
}
