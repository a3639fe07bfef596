package wechat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/subscribe"
)

// renewBefore is how long before its expiry a token is replaced. WeChat issues a new token in the last five minutes of the old
// one, when both are valid.
const renewBefore = 4 * time.Minute

// maxTokenLife limits expires_in; WeChat's tokens are valid for two hours.
const maxTokenLife = 24 * time.Hour

// token is an access token. Printing or logging it does not show its value.
type token = subscribe.ProviderToken

// tokens stores the one access token that all instances share.
type tokens interface {
	// Token returns the newest token, which may have expired, or the zero token if there is none.
	Token(ctx context.Context) (token, error)

	// Refresh calls fetch and stores its token in place of stale, unless another instance has already replaced stale. It returns
	// the newest token. Among all instances at most one fetch runs at a time. After an error of fetch nothing has changed.
	Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error)
}

// sharedTokens stores the token of an app in the database.
type sharedTokens struct {
	subscribe *subscribe.Store
	appID     string
}

const provider = "wechat" // in the table of provider tokens

func (s sharedTokens) Token(ctx context.Context) (token, error) {
	return s.subscribe.ProviderToken(ctx, provider, s.appID)
}

func (s sharedTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	return s.subscribe.RefreshProviderToken(ctx, provider, s.appID, stale, fetch)
}

// cachedToken is this instance's copy of the shared token.
type cachedToken struct {
	mu    sync.Mutex // locked while the shared token is read or refreshed, so that one goroutine does it for all
	value token
	until time.Time // after this the shared token is read again
}

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

// replace returns another token than the refused one.
func (c *client) replace(ctx context.Context, refused token) (token, error) {
	c.cached.mu.Lock()
	defer c.cached.mu.Unlock()
	if c.cached.value.Value != refused.Value && time.Now().Before(c.cached.until) {
		return c.cached.value, nil // another goroutine has replaced it
	}
	return c.cached.store(c.shared.Refresh(ctx, refused, c.fetchToken))
}

func (c *cachedToken) store(t token, err error) (token, error) {
	if err != nil {
		return token{}, err
	}
	c.value, c.until = t, time.Now().Add(t.Left-renewBefore)
	return t, nil
}

// fetchToken requests the stable token in normal mode, in which all requests get the same one. It never forces a refresh, which
// would revoke the token that others are using and is limited to 20 times a day.
func (c *client) fetchToken(ctx context.Context) (token, error) {
	started := time.Now()
	var a response
	_, err := c.exchange(ctx, &a, "cgi-bin/stable_token", "", struct {
		GrantType string `json:"grant_type"`
		AppID     string `json:"appid"`
		Secret    string `json:"secret"`
	}{"client_credential", c.appID, c.secret})
	switch {
	case err != nil:
		err = errors.New(c.clean(err.Error(), ""))
	case a.AccessToken != "" && a.ExpiresIn > 0:
		life := time.Duration(min(a.ExpiresIn, int64(maxTokenLife/time.Second))) * time.Second
		return token{Value: a.AccessToken, Left: life - time.Since(started)}, nil
	case a.Errcode != nil && *a.Errcode != 0:
		err = &refusal{*a.Errcode, c.clean(a.Errmsg, a.AccessToken)}
	default:
		err = errors.New("the response has neither a token nor an errcode")
	}
	return token{}, fmt.Errorf("get an access token: %w", err)
}
