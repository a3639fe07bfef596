package wechat

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/subscribe"
)

// renewBefore is how long before its expiry a token is replaced. WeChat issues a new token in the last five minutes of the old
// one, when both are valid.
const renewBefore = 4 * time.Minute

// token is an access token. If it is printed or logged, its value is hidden.
type token = subscribe.ProviderToken

// tokens stores the one access token that all instances share.
type tokens interface {
	// Token returns the newest token, which may have expired, or the zero token if there is none.
	Token(ctx context.Context) (token, error)

	// Refresh calls fetch and stores the fetched token in place of stale, unless another instance has already replaced stale. It
	// returns the newest token. In all instances together, at most one fetch runs at a time. After an error of fetch, the stored
	// token is unchanged.
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
	mu    sync.Mutex // locked while the shared token is read or refreshed: one goroutine does so, and the others wait for it
	value token
	until time.Time // after this the shared token is read again
}

// store caches a token, unless err is not nil. It returns its arguments, with the zero token after an error.
func (c *cachedToken) store(t token, err error) (token, error) {
	if err != nil {
		return token{}, err
	}
	c.value, c.until = t, time.Now().Add(t.Left-renewBefore)
	return t, nil
}
