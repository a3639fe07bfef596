package subscribe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// ProviderToken is an access token that all instances share. Whatever prints it
// prints no secret.
type ProviderToken struct {
	Value string
	Left  time.Duration // how long it is good from when it was handed over; 0 or less = it is over
}

const hiddenToken = "[access token]"

// Format keeps the value out of every text.
func (ProviderToken) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hiddenToken)) }

// LogValue keeps it out of structured logs.
func (ProviderToken) LogValue() slog.Value { return slog.StringValue(hiddenToken) }

// MarshalText keeps it out of JSON.
func (ProviderToken) MarshalText() ([]byte, error) { return []byte(hiddenToken), nil }

// tokenSQL reads the clock: a transaction's now() stands still while a token is
// fetched.
const tokenSQL = `
select token, extract(epoch from expires_at - clock_timestamp())::float8, version from provider_tokens where provider = $1 and app_id = $2`

// ProviderToken gives the newest token of an app at a provider, which may be over;
// the zero token when there has been none.
func (st *Store) ProviderToken(ctx context.Context, provider, appID string) (ProviderToken, error) {
	t, _, err := st.tokenOf(st.db.Hot.QueryRow(ctx, tokenSQL, provider, appID), provider, appID)
	return t, store.Wrap("provider token", err)
}

// TokenRow names a row of provider_tokens where its token is encrypted.
func TokenRow(provider, appID string) string { return "provider_tokens/" + provider + "/" + appID }

// tokenOf reads a token and its version, which changes with each that is kept. A token
// that cannot be decrypted is as good as none: the provider gives another.
func (st *Store) tokenOf(row pgx.Row, provider, appID string) (t ProviderToken, version int64, err error) {
	var left float64
	err = row.Scan(&t.Value, &left, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		return ProviderToken{}, 0, nil
	}
	if err != nil {
		return ProviderToken{}, 0, err
	}
	t.Left = time.Duration(left * float64(time.Second))
	if t.Value, err = st.db.Keys.Decrypt(TokenRow(provider, appID), t.Value); errors.Is(err, store.ErrDecrypt) {
		return ProviderToken{}, version, nil
	}
	return t, version, err
}

// The bounds of a refresh. fetchLimit must end before the server ends a session that
// is idle in a transaction (10 s for the hot role), and who waits must outwait it.
const (
	fetchLimit            = 8 * time.Second
	tokenLockTimeout      = "9s"
	tokenStatementTimeout = "10s"
)

const (
	tokenTimeoutsSQL = `select set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)`

	// An advisory lock, since the lock of a row would keep the whole server from
	// clearing away dead rows while a token is fetched.
	lockTokenSQL = `select pg_advisory_xact_lock(hashtextextended('provider token ' || $1::text || ' ' || $2::text, 0))`

	keepTokenSQL = `
insert into provider_tokens as t (provider, app_id, token, expires_at, version)
values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), 1)
on conflict (provider, app_id) do update set token = excluded.token, expires_at = excluded.expires_at, version = t.version % 1000000000000000 + 1,
    updated_at = now()`
)

// RefreshProviderToken replaces stale and returns the newest token. Among all instances one
// fetch per app is under way, for 8 s at most. A call that waited for it uses its result, even
// the same value again, and does not fetch. An error of fetch is returned unchanged, and
// nothing is stored.
func (st *Store) RefreshProviderToken(ctx context.Context, provider, appID string, stale ProviderToken,
	fetch func(context.Context) (ProviderToken, error)) (ProviderToken, error) {
	_, asOf, err := st.tokenOf(st.db.Hot.QueryRow(ctx, tokenSQL, provider, appID), provider, appID)
	if err != nil {
		return ProviderToken{}, store.Wrap("refresh token", err)
	}
	select { // one connection of this instance waits for the lock, not all
	case st.refreshing <- struct{}{}:
		defer func() { <-st.refreshing }()
	case <-ctx.Done():
		return ProviderToken{}, store.Wrap("refresh token", context.Cause(ctx))
	}
	var fresh ProviderToken
	var refused error // by fetch
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		kept, version, err := st.lockToken(ctx, tx, provider, appID)
		if err != nil {
			return err
		}
		if kept.Left > 0 && (kept.Value != stale.Value || version != asOf) {
			fresh = kept
			return nil
		}
		if fresh, refused = fetchToken(ctx, fetch); refused != nil {
			return refused
		}
		encrypted, err := st.db.Keys.Encrypt(TokenRow(provider, appID), fresh.Value)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, keepTokenSQL, provider, appID, encrypted, fresh.Left.Seconds())
		return err
	})
	switch {
	case refused != nil:
		return ProviderToken{}, refused
	case err != nil:
		return ProviderToken{}, store.Wrap("refresh token", err)
	}
	return fresh, nil
}

// lockToken gives the token as it is once no other instance refreshes it.
func (st *Store) lockToken(ctx context.Context, tx pgx.Tx, provider, appID string) (t ProviderToken, version int64, err error) {
	var batch pgx.Batch
	batch.Queue(tokenTimeoutsSQL, tokenLockTimeout, tokenStatementTimeout)
	batch.Queue(lockTokenSQL, provider, appID)
	batch.Queue(tokenSQL, provider, appID).QueryRow(func(row pgx.Row) (err error) {
		t, version, err = st.tokenOf(row, provider, appID)
		return err
	})
	err = tx.SendBatch(ctx, &batch).Close()
	return t, version, err
}

func fetchToken(ctx context.Context, fetch func(context.Context) (ProviderToken, error)) (ProviderToken, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	t, err := fetch(ctx)
	if err == nil && (t.Value == "" || t.Left <= 0) {
		err = errors.New("the provider gave a token that is empty or over")
	}
	return t, err
}
