package wechat

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
)

// provider is WeChat's name in the table of provider tokens.
const provider = "wechat"

// sharedTokens keeps the token of an app in the database.
type sharedTokens struct {
	db    *store.DB
	appID string
}

// Token implements tokens.
func (s sharedTokens) Token(ctx context.Context) (token, error) {
	t, err := s.db.ProviderToken(ctx, provider, s.appID)
	return token(t), err
}

// Refresh implements tokens.
func (s sharedTokens) Refresh(ctx context.Context, stale token, fetch func(context.Context) (token, error)) (token, error) {
	t, err := s.db.RefreshProviderToken(ctx, provider, s.appID, store.ProviderToken(stale), func(ctx context.Context) (store.ProviderToken, error) {
		t, err := fetch(ctx)
		return store.ProviderToken(t), err
	})
	return token(t), err
}
