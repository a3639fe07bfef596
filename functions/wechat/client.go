package wechat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/text"
)

const (
	maxResponse = 8 << 10  // bytes of a response's body; WeChat's bodies have a few hundred
	maxHeader   = 16 << 10 // bytes of a response's header
	maxMessage  = 300      // characters of a result's message

	idleConnsPerHost = 32
	// idleTimeout is short: if WeChat closes an idle connection while a request is written to it, the outcome is unknown.
	idleTimeout = 15 * time.Second
)

// message is one subscribe message in WeChat's format.
type message struct {
	OpenID           string          `json:"touser"`
	TemplateID       string          `json:"template_id"`
	Page             string          `json:"page,omitempty"`
	Data             json.RawMessage `json:"data"` // {"thing1": {"value": "Tea"}}
	MiniprogramState string          `json:"miniprogram_state,omitempty"`
	Lang             string          `json:"lang,omitempty"`
}

// client calls WeChat for one app. It is safe for concurrent use.
type client struct {
	base          *url.URL
	appID, secret string
	timeout       time.Duration
	transport     *http.Transport
	shared        tokens
	cached        cachedToken
}

// newClient returns a client of an app. The timeout limits each call; within it, the connection and the TLS handshake may each take
// half of the timeout.
func newClient(base *url.URL, appID, secret string, timeout time.Duration, shared tokens) *client {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true) // postJSON relies on the transport's behaviour with HTTP/1
	return &client{base: base, appID: appID, secret: secret, timeout: timeout, shared: shared, transport: &http.Transport{
		DialContext:            (&net.Dialer{Timeout: timeout / 2}).DialContext,
		TLSHandshakeTimeout:    timeout / 2,
		Protocols:              http1,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}}
}

// maxTokenLife limits expires_in; WeChat's tokens are valid for two hours.
const maxTokenLife = 24 * time.Hour

// token returns a token for a send. tokenErrorResult converts its error to the result of an attempt.
func (c *client) token(ctx context.Context) (token, error) {
	c.cached.mu.Lock()
	defer c.cached.mu.Unlock()
	if time.Now().Before(c.cached.until) {
		return c.cached.value, nil
	}
	t, err := c.shared.Token(ctx)
	if err == nil && t.Left <= renewBefore {
		t, err = c.shared.Refresh(ctx, t, c.fetchToken)
	}
	return c.cached.store(t, err)
}

// replace refreshes the token that WeChat refused, and returns the newest token.
func (c *client) replace(ctx context.Context, refused token) (token, error) {
	c.cached.mu.Lock()
	defer c.cached.mu.Unlock()
	if c.cached.value.Value != refused.Value && time.Now().Before(c.cached.until) {
		return c.cached.value, nil // another goroutine has replaced the token
	}
	return c.cached.store(c.shared.Refresh(ctx, refused, c.fetchToken))
}

// fetchToken requests the stable token in normal mode, in which all requests get the same token. It never forces a refresh: a
// forced refresh would revoke the token that others are using, and WeChat allows only 20 a day.
func (c *client) fetchToken(ctx context.Context) (token, error) {
	started := time.Now()
	var res response
	_, err := c.postJSON(ctx, &res, "cgi-bin/stable_token", "", struct {
		GrantType string `json:"grant_type"`
		AppID     string `json:"appid"`
		Secret    string `json:"secret"`
	}{"client_credential", c.appID, c.secret})
	switch {
	case err != nil:
		err = errors.New(c.clean(err.Error(), ""))
	case res.AccessToken != "" && res.ExpiresIn > 0:
		life := time.Duration(min(res.ExpiresIn, int64(maxTokenLife/time.Second))) * time.Second
		return token{Value: res.AccessToken, Left: life - time.Since(started)}, nil
	case res.Errcode != nil && *res.Errcode != 0:
		err = &refusal{*res.Errcode, c.clean(res.Errmsg, res.AccessToken)}
	default:
		err = errors.New("the response has neither a token nor an errcode")
	}
	return token{}, fmt.Errorf("get an access token: %w", err)
}

// send makes one attempt to send m with t, a token that the method token returned. If WeChat refuses the token, WeChat has not sent
// m: then send replaces the token and tries once more.
func (c *client) send(ctx context.Context, t token, m message) result {
	r := c.sendOnce(ctx, t, m)
	if r.class != tokenRefused {
		return r
	}
	t, err := c.replace(ctx, t)
	if err != nil {
		return tokenErrorResult(err)
	}
	return c.sendOnce(ctx, t, m)
}

// sendOnce makes one call to send m.
func (c *client) sendOnce(ctx context.Context, t token, m message) result {
	if !json.Valid(m.Data) {
		return result{verdict{class: dataRefused}, codeBadData, "the message's data is not valid JSON"}
	}
	var res response
	written, err := c.postJSON(ctx, &res, "cgi-bin/message/subscribe/send", url.Values{"access_token": {t.Value}}.Encode(), m)
	switch {
	case err != nil && !written:
		return result{verdict{class: away, retryAfter: awayDelay}, codeNotSent, c.clean(err.Error(), t.Value)}
	case err != nil:
		return result{verdict{class: unknown}, codeOf(err), c.clean(err.Error(), t.Value)}
	case res.Errcode == nil:
		return result{verdict{class: unknown}, codeBadResponse, "the response has no errcode"}
	}
	return errcodeResult(*res.Errcode, c.clean(res.Errmsg, t.Value))
}

// response is the response of WeChat to any call.
type response struct {
	Errcode     *int   `json:"errcode"`
	Errmsg      string `json:"errmsg"`
	AccessToken string `json:"access_token"`
	ExpiresIn   int64  `json:"expires_in"` // seconds
}

// postJSON makes one POST of a JSON body and reads the response into parsed. After an error, written reports whether a part of the
// request may have been written; if not, WeChat has not received the request. The text of an error may contain the token or the
// app secret: pass it through clean.
func (c *client) postJSON(ctx context.Context, parsed *response, path, query string, body any) (written bool, err error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // WeChat would display < as \u003c
	if err := encoder.Encode(body); err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("timed out after %s", c.timeout))
	defer cancel()

	// RoundTrip returns an error only after the writing has ended: if a byte was written, WroteRequest has been called. RoundTrip
	// uses a second connection (and calls GetConn again) only if nothing was written to the first. The request must not have the
	// header Idempotency-Key, because RoundTrip repeats requests with this header.
	var wrote atomic.Bool
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(limited, &httptrace.ClientTrace{
		GetConn:      func(string) { wrote.Store(false) },
		WroteRequest: func(httptrace.WroteRequestInfo) { wrote.Store(true) },
	}), http.MethodPost, c.base.JoinPath(path).String(), bytes.NewReader(text.Bytes()))
	if err != nil {
		return false, err
	}
	req.URL.RawQuery = query
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "Sendonce")

	res, err := c.transport.RoundTrip(req) // not a Client, which follows redirects
	if err != nil {
		return wrote.Load(), err
	}
	defer res.Body.Close()
	return true, readResponse(res, parsed)
}

// badResponse is the error of a response that is not in WeChat's format.
type badResponse string

func (b badResponse) Error() string { return string(b) }

// codeOf returns the code of an unknown result that is caused by err.
func codeOf(err error) string {
	if _, ok := errors.AsType[badResponse](err); ok {
		return codeBadResponse
	}
	return codeNoResponse
}

func readResponse(res *http.Response, parsed *response) error {
	if res.StatusCode != http.StatusOK {
		return badResponse(strings.TrimSpace(fmt.Sprintf("returned %d %s", res.StatusCode, http.StatusText(res.StatusCode))))
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxResponse+1))
	if err != nil {
		return fmt.Errorf("read the response: %w", err)
	}
	if len(text) > maxResponse {
		return badResponse(fmt.Sprintf("the response has more than %d bytes", maxResponse))
	}
	if json.Unmarshal(text, parsed) != nil {
		return badResponse("the response is not JSON in WeChat's format")
	}
	return nil
}

// secretPart is the length in bytes of the shortest part of a secret that clean hides.
const secretPart = 12

// clean returns a text as one printable line of at most maxMessage characters, with *** for the token and the app secret. If the
// text contains only a part of one of them, clean returns a fixed text instead.
func (c *client) clean(message, token string) string {
	message = text.Line(message)
	for _, secret := range []string{token, c.secret} {
		if secret == "" {
			continue
		}
		message = strings.NewReplacer(secret, "***", url.QueryEscape(secret), "***").Replace(message)
		for i := range len(secret) - secretPart + 1 {
			if strings.Contains(message, secret[i:i+secretPart]) {
				return "not shown: the text has a part of a secret"
			}
		}
	}
	return text.Cut(message, maxMessage)
}
