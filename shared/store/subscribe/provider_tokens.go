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

// ProviderToken is an access token that all instances share. Formatting, logging or encoding a ProviderToken does not
// reveal Value.
type ProviderToken struct {
	Value string
	Left  time.Duration // how long the token is valid, from when it was read or fetched; 0 or less = expired
}

const hiddenToken = "[access token]"

// Format keeps the value out of formatted text.
func (ProviderToken) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hiddenToken)) }

// LogValue keeps the value out of structured logs.
func (ProviderToken) LogValue() slog.Value { return slog.StringValue(hiddenToken) }

// MarshalText keeps the value out of JSON.
func (ProviderToken) MarshalText() ([]byte, error) { return []byte(hiddenToken), nil }

// tokenSQL uses clock_timestamp() because now() is the start of the transaction, which may have waited seconds for the lock.
const tokenSQL = `
select token, expires_at - clock_timestamp(), version from provider_tokens where provider = $1 and app_id = $2`

// ProviderToken returns the newest token of an app at a provider. The token may have expired. It is zero if no token is
// stored, or the stored token cannot be decrypted.
func (st *Store) ProviderToken(ctx context.Context, provider, appID string) (ProviderToken, error) {
	t, _, err := st.tokenOf(st.db.Hot.QueryRow(ctx, tokenSQL, provider, appID), provider, appID)
	return t, store.Wrap("provider token", err)
}

// TokenRowName returns the name of the row of a token: the additional authenticated data of its encryption (see store.Keys).
func TokenRowName(provider, appID string) string { return "provider_tokens/" + provider + "/" + appID }

// tokenOf reads a token and its version, which changes whenever a token is stored. A token that cannot be decrypted
// counts as absent: the provider can issue another.
func (st *Store) tokenOf(row pgx.Row, provider, appID string) (t ProviderToken, version int64, err error) {
	err = row.Scan(&t.Value, &t.Left, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		return ProviderToken{}, 0, nil
	}
	if err != nil {
		return ProviderToken{}, 0, err
	}
	if t.Value, err = st.db.Keys.Decrypt(TokenRowName(provider, appID), t.Value); errors.Is(err, store.ErrDecrypt) {
		return ProviderToken{}, version, nil
	}
	return t, version, err
}

// The timeouts of a refresh. fetchLimit must be shorter than idle_in_transaction_session_timeout, which is 10 s for the database
// role of db.Hot. It must also be shorter than tokenLockTimeout, after which other instances no longer wait for this fetch.
// tokenStatementTimeout must be longer than tokenLockTimeout, or it would end the wait for the lock first.
const (
	fetchLimit            = 8 * time.Second
	tokenLockTimeout      = "9s"
	tokenStatementTimeout = "10s"
)

const (
	tokenTimeoutsSQL = `select set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)`

	// An advisory lock needs no transaction ID. A row lock needs one, which would keep vacuum from removing
	// dead rows while a token is fetched.
	lockTokenSQL = `select pg_advisory_xact_lock(hashtextextended('provider token ' || $1::text || ' ' || $2::text, 0))`

	saveTokenSQL = `
insert into provider_tokens as t (provider, app_id, token, expires_at, version)
values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), 1)
on conflict (provider, app_id) do update set token = excluded.token, expires_at = excluded.expires_at, version = t.version % 1000000000000000 + 1,
    updated_at = now()`
)

// RefreshProviderToken replaces the token given as stale and returns the newest token. All instances together run one fetch
// per app at a time, for at most fetchLimit. If the stored token differs from stale, or another call has stored it meanwhile,
// it is returned without a fetch, unless it has expired. So the Value of the returned token may equal stale.Value. An error
// of fetch is returned unchanged, and nothing is stored.
func (st *Store) RefreshProviderToken(ctx context.Context, provider, appID string, stale ProviderToken,
	fetch func(context.Context) (ProviderToken, error)) (ProviderToken, error) {
	_, versionBefore, err := st.tokenOf(st.db.Hot.QueryRow(ctx, tokenSQL, provider, appID), provider, appID)
	if err != nil {
		return ProviderToken{}, store.Wrap("refresh token", err)
	}
	select { // this instance refreshes one token at a time: at most one of its connections waits for a lock or a fetch
	case st.refreshing <- struct{}{}:
		defer func() { <-st.refreshing }()
	case <-ctx.Done():
		return ProviderToken{}, store.Wrap("refresh token", context.Cause(ctx))
	}
	var fresh ProviderToken
	var fetchErr error
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		stored, version, err := st.lockToken(ctx, tx, provider, appID)
		if err != nil {
			return err
		}
		if stored.Left > 0 && (stored.Value != stale.Value || version != versionBefore) {
			fresh = stored
			return nil
		}
		if fresh, fetchErr = fetchToken(ctx, fetch); fetchErr != nil {
			return fetchErr
		}
		encrypted, err := st.db.Keys.Encrypt(TokenRowName(provider, appID), fresh.Value)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, saveTokenSQL, provider, appID, encrypted, fresh.Left.Seconds())
		return err
	})
	switch {
	case fetchErr != nil:
		return ProviderToken{}, fetchErr
	case err != nil:
		return ProviderToken{}, store.Wrap("refresh token", err)
	}
	return fresh, nil
}

// lockToken waits until no other instance refreshes the token, locks the token until the end of tx and reads it.
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
		err = errors.New("the provider returned an empty or expired token")
	}
	return t, err
}
