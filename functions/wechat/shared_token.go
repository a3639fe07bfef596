package wechat

import (
	"context"

	"github.com/sendonce/sendonce/shared/store/subscribe"
)

// provider is WeChat's name in the table of provider tokens.
const provider = "wechat"

// sharedTokens keeps the token of an app in the database.
type sharedTokens struct {
	subscribe *subscribe.Store
	appID     string
}

// Token implements tokens.
func (s sharedTokens) Token(ctx context.Context) (token, error) {
	t, err := s.subscribe.ProviderToken(ctx, provider, s.appID)
	return token(t), err
}

// Refresh implements tokens.
func (s sharedTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	t, err := s.subscribe.RefreshProviderToken(ctx, provider, s.appID, subscribe.ProviderToken(stale), func(ctx context.Context) (subscribe.ProviderToken, error) {
		t, err := fetch(ctx)
		return subscribe.ProviderToken(t), err
	})
	return token(t), err
}
