package maintenance

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

const reencryptPage = 500 // endpoints in one transaction

// Reencrypted is the result of Reencrypt.
type Reencrypted struct {
	Endpoints int     // changed rows of webhook_endpoints
	Tokens    int     // changed rows of provider_tokens
	Failed    []error // of rows that could not be decrypted and stay as they are
}

const (
	staleEndpointsSQL = `
select id, caller_id, coalesce(url, ''), secret, old_secret from webhook_endpoints
where id > $2 and (not starts_with(secret, $1) or not starts_with(old_secret, $1))
order by id
limit $3
for update`
	reencryptEndpointsSQL = `
update webhook_endpoints e set secret = n.secret, old_secret = n.old_secret
from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, secret, old_secret)
where e.id = n.id`
	staleTokensSQL     = `select provider, app_id, token from provider_tokens where not starts_with(token, $1) for update`
	reencryptTokensSQL = `update provider_tokens set token = $3 where provider = $1 and app_id = $2`
)

// Reencrypt finds all secrets that are not encrypted with the first key of SENDONCE_ENCRYPTION_KEYS, and encrypts them
// with it. Run Reencrypt after all functions have the new first key. If no secret fails, the other keys can be removed.
// A run can be interrupted and repeated.
func (st *Store) Reencrypt(ctx context.Context) (done Reencrypted, err error) {
	if st.db.Keys.IsEmpty() {
		return done, errors.New("no encryption key is set")
	}
	for after := (task.ID{}); err == nil; {
		var last task.ID
		err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) (err error) {
			last, err = st.reencryptEndpoints(ctx, tx, after, &done)
			return err
		})
		if last.IsZero() {
			break
		}
		after = last
	}
	if err == nil {
		err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error { return st.reencryptTokens(ctx, tx, &done) })
	}
	return done, store.Wrap("reencrypt", err)
}

// reencryptEndpoints encrypts the secrets of the page of endpoints after an id, and returns the last id of the page, or
// zero if there are no more endpoints.
func (st *Store) reencryptEndpoints(ctx context.Context, tx pgx.Tx, after task.ID, done *Reencrypted) (last task.ID, err error) {
	var ids []task.ID
	var secrets []string
	var olds []*string
	var caller int64
	var url, secret string
	var old *string
	err = store.QueryEach(ctx, tx, staleEndpointsSQL, []any{st.db.Keys.NewestPrefix(), after, reencryptPage}, []any{&last, &caller, &url, &secret, &old}, func() {
		row := webhooks.EndpointRow(last, caller, url)
		newSecret, err := st.reencrypt(row, secret)
		var newOld *string
		if err == nil && old != nil {
			var text string
			text, err = st.reencrypt(row, *old)
			newOld = &text
		}
		if err != nil {
			done.Failed = append(done.Failed, err)
			return
		}
		ids, secrets, olds = append(ids, last), append(secrets, newSecret), append(olds, newOld)
	})
	if err == nil && len(ids) > 0 {
		_, err = tx.Exec(ctx, reencryptEndpointsSQL, ids, secrets, olds)
		done.Endpoints += len(ids)
	}
	return last, err
}

func (st *Store) reencryptTokens(ctx context.Context, tx pgx.Tx, done *Reencrypted) error {
	var batch pgx.Batch
	var provider, appID, token string
	err := store.QueryEach(ctx, tx, staleTokensSQL, []any{st.db.Keys.NewestPrefix()}, []any{&provider, &appID, &token}, func() {
		newToken, err := st.reencrypt(subscribe.TokenRowName(provider, appID), token)
		if err != nil {
			done.Failed = append(done.Failed, err)
			return
		}
		batch.Queue(reencryptTokensSQL, provider, appID, newToken)
		done.Tokens++
	})
	if err != nil {
		return err
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// reencrypt encrypts a stored secret with the first key. The error names the row without the URL, which may contain a secret.
func (st *Store) reencrypt(row, stored string) (string, error) {
	secret, err := st.db.Keys.Decrypt(row, stored)
	if err != nil {
		return "", fmt.Errorf("%s: %w", store.RowID(row), err)
	}
	return st.db.Keys.Encrypt(row, secret)
}
