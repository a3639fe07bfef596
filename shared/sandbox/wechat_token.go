package sandbox

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"
)

// renewedEarly is how long before its end a stable token is replaced; both are
// good then.
const renewedEarly = 5 * time.Minute

// wechatToken is an access token that was given out.
type wechatToken struct {
	until    time.Time
	replaced bool // by a forced refresh
}

// ExpireTokens ends the access tokens given so far: they are answered with errcode
// 42001 from now on.
func (w *WeChat) ExpireTokens() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tokens {
		t.until = time.Time{}
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
	f := w.take(func(f wechatFault) bool { return f.Tokens })
	w.mu.Unlock()

	w.perform(rw, f, func(really bool) any {
		switch {
		case !really:
			return nil
		case err != nil:
			return wechatRefusal{47001, "data format error"}
		case body.GrantType != "client_credential":
			return wechatRefusal{40002, "invalid grant_type"}
		case body.AppID != w.o.AppID:
			return wechatRefusal{40013, "invalid appid"}
		case body.Secret != w.o.Secret:
			return wechatRefusal{40125, "invalid appsecret"}
		}
		// Only calls with the right secret are logged.
		w.logf("gave a token %s", f)
		return w.give(body.ForceRefresh)
	})
}

// give gives the token that is good for more than 5 minutes yet, or makes one.
func (w *WeChat) give(force bool) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := w.tokens[w.newest]
	if newest != nil && force {
		newest.replaced = true
	}
	if newest == nil || force || time.Until(newest.until) <= renewedEarly {
		w.newest, newest = "token-"+rand.Text(), &wechatToken{until: time.Now().Add(w.o.TokenLife)}
		w.tokens[w.newest] = newest
	}
	return map[string]any{"access_token": w.newest, "expires_in": int(time.Until(newest.until).Round(time.Second).Seconds())}
}

// neverGiven refuses what was never an access token.
func (w *WeChat) neverGiven(value string) wechatRefusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case value == "":
		return wechatRefusal{41001, "access_token missing"}
	case w.tokens[value] == nil:
		return wechatRefusal{40014, "invalid access_token"}
	}
	return wechatRefusal{}
}

// check says whether a token that was given is still good. The caller holds w.mu.
func (w *WeChat) check(value string) wechatRefusal {
	switch t := w.tokens[value]; {
	case t.replaced:
		return wechatRefusal{40001, "invalid credential, access_token is invalid or not latest"}
	case !time.Now().Before(t.until):
		return wechatRefusal{42001, "access_token expired"}
	}
	return wechatRefusal{}
}
