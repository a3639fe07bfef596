package wechat

import (
	"context"

	"github.com/sendonce/sendonce/shared/store/subscribe"
)

// provider is WeChat's name in the table of provider tokens.
const provider = "wechat"

// sharedTokens stores the token of an app in the database.
type sharedTokens struct {
	subscribe *subscribe.Store
	appID     string
}

// Token implements tokens.
func (s sharedTokens) Token(ctx context.Context) (token, error) {
	return s.subscribe.ProviderToken(ctx, provider, s.appID)
}

// Refresh implements tokens.
func (s sharedTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	return s.subscribe.RefreshProviderToken(ctx, provider, s.appID, stale, fetch)
}
