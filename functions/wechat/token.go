package wechat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// renewEarly is how long before its end a token is replaced. WeChat gives a new
// one in the last five minutes of the old, in which both are good.
const renewEarly = 4 * time.Minute

// longestLife of a token is a guard against nonsense; WeChat gives two hours.
const longestLife = 24 * time.Hour

// token is an access token. Whatever prints it prints no secret.
type token struct {
	Value string
	Left  time.Duration // how long it is good from when it was handed over
}

// Format keeps the value out of every text.
func (token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[access token]")) }

// LogValue keeps it out of structured logs.
func (token) LogValue() slog.Value { return slog.StringValue("[access token]") }

// tokens is where all instances keep the one access token that they share.
type tokens interface {
	// Token gives the newest token, which may be over; the zero token when there
	// has been none.
	Token(ctx context.Context) (token, error)

	// Refresh replaces stale. Unless another instance has done so already, fetch is
	// called and what it gives is kept; at any time one fetch is under way among all
	// instances. Either way the newest token is given. After an error of fetch
	// nothing has changed.
	Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error)
}

// heldToken is an instance's own copy of the shared token.
type heldToken struct {
	mu    sync.Mutex // held while the shared one is read or refreshed, so that one goroutine does it for all
	value token
	until time.Time // use it; after this the shared one decides
}

// token gives a token to send with. withoutToken says what its error means for
// the attempts that wanted one.
func (c *client) token(ctx context.Context) (token, error) {
	c.held.mu.Lock()
	defer c.held.mu.Unlock()
	if time.Now().Before(c.held.until) {
		return c.held.value, nil
	}
	t, err := c.shared.Token(ctx)
	if err == nil && t.Left <= renewEarly {
		t, err = c.shared.Refresh(ctx, t, c.fetchToken)
	}
	return c.held.keep(t, err)
}

// replace gives the token that takes the place of one that WeChat refused.
func (c *client) replace(ctx context.Context, refused token) (token, error) {
	c.held.mu.Lock()
	defer c.held.mu.Unlock()
	if c.held.value.Value != refused.Value && time.Now().Before(c.held.until) {
		return c.held.value, nil // another goroutine was faster
	}
	return c.held.keep(c.shared.Refresh(ctx, refused, c.fetchToken))
}

func (h *heldToken) keep(t token, err error) (token, error) {
	if err != nil {
		return token{}, err
	}
	h.value, h.until = t, time.Now().Add(t.Left-renewEarly)
	return t, nil
}

// fetchToken asks WeChat for the stable token in its normal mode, which gives the
// same one to all who ask. The forced mode is never used: it ends the token that
// others are sending with, and can be used 20 times a day.
func (c *client) fetchToken(ctx context.Context) (token, error) {
	asked := time.Now()
	var a answer
	_, err := c.exchange(ctx, &a, "cgi-bin/stable_token", "", struct {
		GrantType string `json:"grant_type"`
		AppID     string `json:"appid"`
		Secret    string `json:"secret"`
	}{"client_credential", c.appID, c.secret})
	switch {
	case err != nil:
		err = errors.New(c.clean(err.Error(), ""))
	case a.AccessToken != "" && a.ExpiresIn > 0:
		life := time.Duration(min(a.ExpiresIn, int64(longestLife/time.Second))) * time.Second
		return token{a.AccessToken, life - time.Since(asked)}, nil
	case a.Errcode != nil && *a.Errcode != 0:
		err = &refusal{*a.Errcode, c.clean(a.Errmsg, a.AccessToken)}
	default:
		err = errors.New("the answer has neither a token nor an errcode")
	}
	return token{}, fmt.Errorf("get an access token: %w", err)
}
