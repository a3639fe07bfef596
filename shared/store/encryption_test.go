package store_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

func keyText(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

func keysOf(t *testing.T, texts ...string) store.Keys {
	t.Helper()
	k, err := store.ParseKeys(strings.Join(texts, ","))
	require.NoError(t, err)
	return k
}

func TestEncryptedValueIsBoundToItsRow(t *testing.T) {
	t.Parallel()
	k := keysOf(t, keyText(1))
	a, err := k.Encrypt("row/1", "whsec_x")
	require.NoError(t, err)
	b, err := k.Encrypt("row/1", "whsec_x")
	require.NoError(t, err)
	require.NotEqual(t, a, b, "nobody can see that the secrets are equal")
	require.NotContains(t, a, "whsec")
	for _, stored := range []string{a, b} {
		secret, err := k.Decrypt("row/1", stored)
		require.NoError(t, err)
		require.Equal(t, "whsec_x", secret)
	}
	_, err = k.Decrypt("row/2", a)
	require.ErrorIs(t, err, store.ErrDecrypt, "a value that was copied to another row")
	_, err = k.Decrypt("row/1", a[:len(a)-2])
	require.ErrorIs(t, err, store.ErrDecrypt)
	_, err = k.Decrypt("row/1", "whsec_x")
	require.ErrorIs(t, err, store.ErrDecrypt, "a plain secret")
	_, err = store.Keys{}.Encrypt("row/1", "x")
	require.Error(t, err)
}

func TestOlderKeysDecryptAndTheFirstKeyEncrypts(t *testing.T) {
	t.Parallel()
	old, both, newest := keysOf(t, keyText(1)), keysOf(t, keyText(2), keyText(1)), keysOf(t, keyText(2))
	stored, err := old.Encrypt("row", "s")
	require.NoError(t, err)
	secret, err := both.Decrypt("row", stored)
	require.NoError(t, err)
	require.Equal(t, "s", secret)
	_, err = newest.Decrypt("row", stored)
	require.ErrorIs(t, err, store.ErrDecrypt)
	stored, err = both.Encrypt("row", "s")
	require.NoError(t, err)
	_, err = newest.Decrypt("row", stored)
	require.NoError(t, err)
}

// storeToken stores a provider token.
func storeToken(t *testing.T, db *storetest.DB, token string) {
	t.Helper()
	_, err := db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{}, func(context.Context) (subscribe.ProviderToken, error) {
		return subscribe.ProviderToken{Value: token, Left: time.Hour}, nil
	})
	require.NoError(t, err)
}

func TestStoredSecretsAreEncrypted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.Webhooks.RotateEndpoint(t.Context(), e.ID, nil, "whsec_rotated", store.Operator{Name: "shop"})
	require.NoError(t, err)
	for _, secret := range []string{"whsec_first", "whsec_second"} {
		_, err = db.Webhooks.RotateSigningSecret(t.Context(), 7, secret, store.Operator{Name: "shop"})
		require.NoError(t, err)
	}
	storeToken(t, db, "token-in-clear")
	stored, err := store.QueryRows(t.Context(), db.Hot, pgx.RowTo[string], `
		select secret from webhook_endpoints union all select old_secret from webhook_endpoints where old_secret is not null
		union all select token from provider_tokens`)
	require.NoError(t, err)
	require.Len(t, stored, 5)
	for _, text := range stored {
		require.Regexp(t, `^enc2\.[0-9a-f]{8}\.[A-Za-z0-9+/]+$`, text)
	}
	require.Equal(t, "token-in-clear", db.MustToken(t).Value)
	signing, err := db.Webhooks.SigningSecrets(t.Context(), []int64{7}, storetest.FirstSecret)
	require.NoError(t, err)
	require.Equal(t, webhooks.Signing{Secrets: []string{"whsec_second", "whsec_first"}}, signing[7])
}

func TestPlainSecretsAreRefused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustAddEndpoint(t, 7, "https://shop.example")
	storeToken(t, db, "token")
	for _, sql := range []string{
		`update webhook_endpoints set secret = 'whsec_mine'`, `update webhook_endpoints set old_secret = 'whsec_mine'`,
		`insert into webhook_endpoints (id, caller_id, secret) values (gen_random_uuid(), 0, 'whsec_mine')`,
		`update provider_tokens set token = 'mine'`,
		`insert into provider_tokens (provider, app_id, token, expires_at, version) values ('wechat', 'other', 'mine', now(), 1)`,
	} {
		_, err := db.Hot.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "violates check constraint", sql)
	}
}

func TestSecretIsBoundToItsCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.EnsureCaller(t, 7)
	db.EnsureCaller(t, 8)
	secretOf := func(caller int64) (string, error) {
		s, err := db.Webhooks.SigningSecret(t.Context(), caller, storetest.FirstSecret())
		return s.Secret, err
	}
	_, err := secretOf(7)
	require.NoError(t, err)
	unchanged, err := secretOf(0)
	require.NoError(t, err)
	db.MustAddEndpoint(t, 9, "https://shop.example")

	// makeSigningSecret turns a stored secret of the caller from into the signing secret of the caller to. An attacker who can log in as
	// the hot role can do this without the key.
	makeSigningSecret := func(from, to int64) {
		var id task.ID
		var secret string
		require.NoError(t, db.Hot.QueryRow(t.Context(), `delete from webhook_endpoints where caller_id = $1 returning id, secret`, from).Scan(&id, &secret))
		_, err := db.Hot.Exec(t.Context(), `insert into webhook_endpoints (id, caller_id, secret) values ($1, $2, $3)`, id, to, secret)
		require.NoError(t, err)
	}
	makeSigningSecret(7, 8)
	_, err = secretOf(8)
	require.ErrorIs(t, err, store.ErrDecrypt, "it was the signing secret of another caller")
	makeSigningSecret(9, 9)
	_, err = secretOf(9)
	require.ErrorIs(t, err, store.ErrDecrypt, "it was the secret of an endpoint")
	signing, err := db.Webhooks.SigningSecrets(t.Context(), []int64{0, 8, 9}, storetest.FirstSecret)
	require.NoError(t, err)
	require.ErrorIs(t, signing[8].Err, store.ErrDecrypt)
	require.ErrorIs(t, signing[9].Err, store.ErrDecrypt)
	require.Equal(t, webhooks.Signing{Secrets: []string{unchanged}}, signing[0])
}

func TestReencryptMovesEverySecretToTheNewKey(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	withKeys := func(keys ...string) *storetest.DB {
		return storetest.OpenAt(t, url, func(c *stores.Config) { c.Keys = keysOf(t, keys...) })
	}
	before := withKeys(keyText(1))
	mine := before.MustAddEndpoint(t, 7, "https://shop.example")
	_, err := before.Webhooks.RotateEndpoint(t.Context(), mine.ID, nil, "whsec_rotated", store.Operator{Name: "shop"})
	require.NoError(t, err)
	before.MustAddEndpoint(t, 8, "https://other.example")
	before.MustAddEndpoint(t, 9, "https://copied.example")
	before.Exec(t, `update webhook_endpoints set secret = (select secret from webhook_endpoints where caller_id = 7) where caller_id = 9`)
	storeToken(t, before, "token")

	both := withKeys(keyText(2), keyText(1))
	done, err := both.Maintenance.Reencrypt(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int{done.Endpoints, done.Tokens})
	require.Len(t, done.Failed, 1, "the secret that was copied from another row")
	require.ErrorIs(t, done.Failed[0], store.ErrDecrypt)
	again, err := both.Maintenance.Reencrypt(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1}, []int{again.Endpoints, again.Tokens, len(again.Failed)})

	after := withKeys(keyText(2))
	require.Equal(t, "token", after.MustToken(t).Value)
	require.Equal(t, subscribe.ProviderToken{}, before.MustToken(t), "a store with only the old key cannot decrypt it")
	for _, caller := range []int64{7, 8, 9} {
		s := storetest.Submission(storetest.FromCaller(caller))
		after.MustSubmit(t, s)
		after.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	}
	signing := map[string]webhooks.Signing{}
	for _, d := range after.MustClaimDeliveries(t) {
		signing[d.URL] = d.Signing
	}
	require.Equal(t, webhooks.Signing{Secrets: []string{"whsec_rotated", "whsec_https://shop.example"}}, signing["https://shop.example"])
	require.Equal(t, webhooks.Signing{Secrets: []string{"whsec_https://other.example"}}, signing["https://other.example"])
	require.ErrorIs(t, signing["https://copied.example"].Err, store.ErrDecrypt, "only this delivery fails")
}

func TestErrorsOfInvalidKeysDoNotContainKeys(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"hunter2", keyText(1) + ",hunter2", keyText(1) + "," + keyText(1), ",", base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
		_, err := store.ParseKeys(text)
		require.ErrorContains(t, err, "key ", text)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), keyText(1))
	}
	none, err := store.ParseKeys(" ")
	require.NoError(t, err)
	require.True(t, none.IsEmpty())
}
