package store

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
	"github.com/sendonce/sendonce/shared/task"
)

func keyText(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

func keysOf(t *testing.T, texts ...string) Keys {
	t.Helper()
	k, err := ParseKeys(strings.Join(texts, ","))
	require.NoError(t, err)
	return k
}

func TestKeysEncryptAndDecryptTheSecretOfARow(t *testing.T) {
	t.Parallel()
	k := keysOf(t, keyText(1))
	a, err := k.encrypt("row/1", "whsec_x")
	require.NoError(t, err)
	b, err := k.encrypt("row/1", "whsec_x")
	require.NoError(t, err)
	require.NotEqual(t, a, b, "equal secrets do not look equal")
	require.NotContains(t, a, "whsec")
	for _, stored := range []string{a, b} {
		secret, err := k.decrypt("row/1", stored)
		require.NoError(t, err)
		require.Equal(t, "whsec_x", secret)
	}
	_, err = k.decrypt("row/2", a)
	require.ErrorIs(t, err, ErrDecrypt, "a value that was copied to another row")
	_, err = k.decrypt("row/1", a[:len(a)-2])
	require.ErrorIs(t, err, ErrDecrypt)
	secret, err := Keys{}.decrypt("row/1", "whsec_y")
	require.NoError(t, err, "a row from before encryption")
	require.Equal(t, "whsec_y", secret)
	_, err = Keys{}.encrypt("row/1", "x")
	require.Error(t, err)
}

func TestAnOlderKeyStillDecryptsAndTheFirstEncrypts(t *testing.T) {
	t.Parallel()
	old, both, newest := keysOf(t, keyText(1)), keysOf(t, keyText(2), keyText(1)), keysOf(t, keyText(2))
	stored, err := old.encrypt("row", "s")
	require.NoError(t, err)
	secret, err := both.decrypt("row", stored)
	require.NoError(t, err)
	require.Equal(t, "s", secret)
	_, err = newest.decrypt("row", stored)
	require.ErrorIs(t, err, ErrDecrypt)
	stored, err = both.encrypt("row", "s")
	require.NoError(t, err)
	_, err = newest.decrypt("row", stored)
	require.NoError(t, err)
}

// stored is every secret as a reader of the tables sees it.
func (db *DB) stored(t *testing.T) (all []string) {
	t.Helper()
	rows, err := db.hot.Query(t.Context(), `
		select secret from webhook_endpoints union all select old_secret from webhook_endpoints where old_secret is not null
		union all select token from provider_tokens`)
	require.NoError(t, err)
	all, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

func TestNoStoredSecretIsReadableWithoutTheKey(t *testing.T) {
	t.Parallel()
	db := open(t)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.RotateEndpoint(t.Context(), e.ID, nil, "whsec_rotated", Operator{Name: "shop"})
	require.NoError(t, err)
	for _, secret := range []string{"whsec_first", "whsec_second"} {
		_, err = db.RotateSigningSecret(t.Context(), 7, secret, Operator{Name: "shop"})
		require.NoError(t, err)
	}
	_, err = db.RefreshProviderToken(t.Context(), "wechat", "app", ProviderToken{}, func(context.Context) (ProviderToken, error) {
		return ProviderToken{"token-in-clear", time.Hour}, nil
	})
	require.NoError(t, err)
	stored := db.stored(t)
	require.Len(t, stored, 5)
	for _, text := range stored {
		require.Regexp(t, `^enc2\.[0-9a-f]{8}\.[A-Za-z0-9+/]+$`, text)
	}
	require.Equal(t, "token-in-clear", db.mustToken(t).Value)
	signing, err := db.SigningSecrets(t.Context(), []int64{7}, fresh)
	require.NoError(t, err)
	require.Equal(t, Signing{Secrets: []string{"whsec_second", "whsec_first"}}, signing[7])
}

func TestNoPlainSecretIsWrittenOnceAllAreEncrypted(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.RefreshProviderToken(t.Context(), "wechat", "app", ProviderToken{}, func(context.Context) (ProviderToken, error) {
		return ProviderToken{"token", time.Hour}, nil
	})
	require.NoError(t, err)
	statements := []string{
		`update webhook_endpoints set secret = 'whsec_mine'`, `update webhook_endpoints set old_secret = 'whsec_mine'`,
		`insert into webhook_endpoints (id, caller_id, secret) values (gen_random_uuid(), 0, 'whsec_mine')`,
		`update provider_tokens set token = 'mine'`,
		`insert into provider_tokens (provider, app_id, token, expires_at, version) values ('wechat', 'other', 'mine', now(), 1)`,
	}
	for _, sql := range statements {
		_, err := db.hot.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "is not encrypted", sql)
	}
	o := owner(t, url)
	_, err = o.Exec(t.Context(), `create temp table webhook_endpoints (secret text, old_secret text); insert into webhook_endpoints values ('plain')`)
	require.NoError(t, err)
	_, err = o.Exec(t.Context(), `update public.webhook_endpoints set secret = 'whsec_mine'`)
	require.ErrorContains(t, err, "is not encrypted", "a temporary table is not asked")

	_, err = owner(t, url).Exec(t.Context(), `alter table webhook_endpoints disable trigger user; alter table provider_tokens disable trigger user;
		update webhook_endpoints set secret = 'whsec_before'; update provider_tokens set token = 'before';
		alter table webhook_endpoints enable trigger user; alter table provider_tokens enable trigger user`)
	require.NoError(t, err)
	for _, sql := range statements { // of processes that are not replaced yet
		_, err := db.hot.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	_, err = db.RotateEndpoint(t.Context(), e.ID, nil, "whsec_new", Operator{Name: "shop"})
	require.NoError(t, err, "the secret before is not encrypted")
}

func TestASecretIsOfNoUseToAnotherCaller(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustHaveCaller(t, 7)
	db.mustHaveCaller(t, 8)
	secretOf := func(caller int64) (string, error) {
		s, err := db.SigningSecret(t.Context(), caller, fresh())
		return s.Secret, err
	}
	_, err := secretOf(7)
	require.NoError(t, err)
	neighbour, err := secretOf(0)
	require.NoError(t, err)
	db.mustAddEndpoint(t, 9, "https://shop.example")

	// What the role of the functions may do without the key: write the same row again.
	move := func(from, to int64) {
		var id task.ID
		var secret string
		require.NoError(t, db.hot.QueryRow(t.Context(), `delete from webhook_endpoints where caller_id = $1 returning id, secret`, from).Scan(&id, &secret))
		_, err := db.hot.Exec(t.Context(), `insert into webhook_endpoints (id, caller_id, secret) values ($1, $2, $3)`, id, to, secret)
		require.NoError(t, err)
	}
	move(7, 8)
	_, err = secretOf(8)
	require.ErrorIs(t, err, ErrDecrypt, "the signing secret of another")
	move(9, 9)
	_, err = secretOf(9)
	require.ErrorIs(t, err, ErrDecrypt, "the secret of an endpoint, which nobody is shown again")
	signing, err := db.SigningSecrets(t.Context(), []int64{0, 8, 9}, fresh)
	require.NoError(t, err)
	require.ErrorIs(t, signing[8].Err, ErrDecrypt)
	require.ErrorIs(t, signing[9].Err, ErrDecrypt)
	require.Equal(t, Signing{Secrets: []string{neighbour}}, signing[0])
}

func TestReencryptBindsWhatAnEarlierVersionEncrypted(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.RotateEndpoint(t.Context(), e.ID, nil, "whsec_rotated", Operator{Name: "shop"})
	require.NoError(t, err)
	_, err = db.RefreshProviderToken(t.Context(), "wechat", "app", ProviderToken{}, func(context.Context) (ProviderToken, error) {
		return ProviderToken{"token", time.Hour}, nil
	})
	require.NoError(t, err)
	earlier := func(row, secret string) string {
		sealed := db.keys.aead[db.keys.ids[0]].Seal(nil, nil, []byte(secret), []byte(row))
		return earlierPrefix + db.keys.ids[0] + "." + base64.RawStdEncoding.EncodeToString(sealed)
	}
	row := "webhook_endpoints/" + e.ID.String()
	o := owner(t, url)
	_, err = o.Exec(t.Context(), `alter table webhook_endpoints disable trigger user; alter table provider_tokens disable trigger user`)
	require.NoError(t, err)
	_, err = o.Exec(t.Context(), `update webhook_endpoints set secret = $1, old_secret = $2`, earlier(row, "whsec_b"), earlier(row, "whsec_a"))
	require.NoError(t, err)
	_, err = o.Exec(t.Context(), `update provider_tokens set token = $1`, earlier(tokenRow("wechat", "app"), "earlier token"))
	require.NoError(t, err)
	_, err = o.Exec(t.Context(), `alter table webhook_endpoints enable trigger user; alter table provider_tokens enable trigger user`)
	require.NoError(t, err)

	signs := func() Signing {
		s := message(fromCaller(7))
		db.mustSubmit(t, s)
		db.told(t, s.ID, 1, "task.succeeded")
		due := db.mustClaimDeliveries(t)
		require.Len(t, due, 1)
		return due[0].Signing
	}
	both := Signing{Secrets: []string{"whsec_b", "whsec_a"}}
	require.Equal(t, both, signs(), "nothing waits for reencrypt")
	require.Equal(t, "earlier token", db.mustToken(t).Value)
	done, err := db.Reencrypt(t.Context())
	require.NoError(t, err)
	require.Equal(t, Reencrypted{Endpoints: 1, Tokens: 1}, done)
	for _, text := range db.stored(t) {
		require.Regexp(t, `^enc2\.`, text)
	}
	require.Equal(t, both, signs())
	require.Equal(t, "earlier token", db.mustToken(t).Value)
	_, err = db.hot.Exec(t.Context(), `update webhook_endpoints set secret = $1`, earlier(row, "whsec_b"))
	require.ErrorContains(t, err, "is not encrypted and bound to its row")
}

func TestReencryptMovesEverySecretToTheNewKey(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	withKeys := func(keys ...string) *DB {
		return openAt(t, url, func(c *Config) { c.Keys = keysOf(t, keys...) })
	}
	before := withKeys(keyText(1))
	mine := before.mustAddEndpoint(t, 7, "https://shop.example")
	_, err := before.RotateEndpoint(t.Context(), mine.ID, nil, "whsec_rotated", Operator{Name: "shop"})
	require.NoError(t, err)
	before.mustAddEndpoint(t, 8, "https://plain.example")
	_, err = owner(t, url).Exec(t.Context(), `alter table webhook_endpoints disable trigger plain_secrets_changed;
		update webhook_endpoints set secret = 'whsec_plain' where caller_id = 8;
		alter table webhook_endpoints enable trigger plain_secrets_changed`) // as it was before there was encryption
	require.NoError(t, err)
	before.mustAddEndpoint(t, 9, "https://copied.example")
	before.exec(t, `update webhook_endpoints set secret = (select secret from webhook_endpoints where caller_id = 7) where caller_id = 9`)
	_, err = before.RefreshProviderToken(t.Context(), "wechat", "app", ProviderToken{}, func(context.Context) (ProviderToken, error) {
		return ProviderToken{"token", time.Hour}, nil
	})
	require.NoError(t, err)

	both := withKeys(keyText(2), keyText(1))
	done, err := both.Reencrypt(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int{done.Endpoints, done.Tokens})
	require.Len(t, done.Failed, 1, "the secret that somebody copied from another row")
	require.ErrorIs(t, done.Failed[0], ErrDecrypt)
	again, err := both.Reencrypt(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1}, []int{again.Endpoints, again.Tokens, len(again.Failed)})

	after := withKeys(keyText(2))
	require.Equal(t, "token", after.mustToken(t).Value)
	require.Equal(t, ProviderToken{}, before.mustToken(t), "which has the provider asked for another one")
	for _, caller := range []int64{7, 8, 9} {
		s := message(fromCaller(caller))
		after.mustSubmit(t, s)
		after.told(t, s.ID, 1, "task.succeeded")
	}
	signing := map[string]Signing{}
	for _, d := range after.mustClaimDeliveries(t) {
		signing[d.URL] = d.Signing
	}
	require.Equal(t, Signing{Secrets: []string{"whsec_rotated", "whsec_https://shop.example"}}, signing["https://shop.example"])
	require.Equal(t, Signing{Secrets: []string{"whsec_plain"}}, signing["https://plain.example"])
	require.ErrorIs(t, signing["https://copied.example"].Err, ErrDecrypt, "it holds up no other delivery")
}

func TestKeysThatAreNoneAreNamedAndNotShown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"hunter2", keyText(1) + ",hunter2", keyText(1) + "," + keyText(1), ",", base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
		_, err := ParseKeys(text)
		require.ErrorContains(t, err, "key ", text)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), keyText(1))
	}
	none, err := ParseKeys(" ")
	require.NoError(t, err)
	require.Empty(t, none.ids)
}
