package webhooks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// EndpointRow returns the additional authenticated data with which the secrets of a row of webhook_endpoints are
// encrypted. url is "" for a caller's signing secret. Without this data, a compromised function could copy a secret
// to the row of another caller, or let an endpoint's secret be read as a caller's signing secret.
func EndpointRow(id task.ID, caller int64, url string) string {
	return fmt.Sprintf("webhook_endpoints/%s caller %d url %s", id, caller, url)
}

// SigningSecret is the secret that signs a caller's events to callback URLs and its messages to URLs.
type SigningSecret struct {
	Secret   string
	OldUntil *time.Time // until when the old secret signs too; nil = there is none
}

const (
	signingSecretSQL = `
select id, secret, case when old_secret_until > now() then old_secret_until end
from webhook_endpoints where caller_id = $1 and url is null`
	addSigningSQL = `
insert into webhook_endpoints (id, caller_id, secret) values ($1, $2, $3)
on conflict (caller_id) where url is null do nothing`
)

const rotateSecret = `
update webhook_endpoints set old_secret = secret, old_secret_until = now() + interval '24 hours', secret = $2, rotated_at = now()
where id = $1 returning `

// addSigningSecret stores the first secret of a caller. added is false if the caller has a secret already.
func (st *Store) addSigningSecret(ctx context.Context, db store.Execer, caller int64, fresh string) (added bool, err error) {
	id := task.NewID()
	secret, err := st.db.Keys.Encrypt(EndpointRow(id, caller, ""), fresh)
	if err != nil {
		return false, err
	}
	tag, err := db.Exec(ctx, addSigningSQL, id, caller, secret)
	return tag.RowsAffected() == 1, err
}

// SigningSecret returns a caller's signing secret. If the caller has none, SigningSecret stores fresh first. The error
// is store.ErrDecrypt if the secret cannot be decrypted.
func (st *Store) SigningSecret(ctx context.Context, caller int64, fresh string) (SigningSecret, error) {
	s, err := st.signingSecret(ctx, caller)
	if task.CodeOf(err) != task.CodeNotFound {
		return s, store.Wrap("signing secret", err)
	}
	if _, err = st.addSigningSecret(ctx, st.db.Hot, caller, fresh); err == nil {
		s, err = st.signingSecret(ctx, caller)
	}
	return s, store.Wrap("signing secret", err)
}

func (st *Store) signingSecret(ctx context.Context, caller int64) (s SigningSecret, err error) {
	var id task.ID
	err = st.db.Hot.QueryRow(ctx, signingSecretSQL, caller).Scan(&id, &s.Secret, &s.OldUntil)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, store.NotFound("secret")
	}
	if err == nil {
		s.Secret, err = st.db.Keys.Decrypt(EndpointRow(id, caller, ""), s.Secret)
	}
	return s, err
}

// Signing has the secrets with which deliveries to an endpoint, or callbacks and messages of a caller, are signed.
type Signing struct {
	Secrets []string // newest first; none for a robot that was registered without a secret
	Err     error    // why there are no secrets, such as store.ErrDecrypt
}

// signing decrypts the secrets of a row of webhook_endpoints.
func (st *Store) signing(row string, stored, old *string) (s Signing) {
	for _, text := range []*string{stored, old} {
		if text == nil {
			continue
		}
		secret, err := st.db.Keys.Decrypt(row, *text)
		if err != nil {
			return Signing{Err: err}
		}
		s.Secrets = append(s.Secrets, secret)
	}
	return s
}

const knownSecretsSQL = `
select id, caller_id, secret, case when old_secret_until > now() then old_secret end
from webhook_endpoints where url is null and caller_id = any($1::bigint[])`

// SigningSecrets returns the signing secrets of the callers. fresh makes the secret of a caller that has none. If a
// secret cannot be decrypted, or a caller does not exist, only the Signing of that caller has an error.
func (st *Store) SigningSecrets(ctx context.Context, callers []int64, fresh func() string) (map[int64]Signing, error) {
	signing := map[int64]Signing{}
	var id task.ID
	var caller int64
	var secret, old *string
	err := store.QueryEach(ctx, st.db.Hot, knownSecretsSQL, []any{callers}, []any{&id, &caller, &secret, &old}, func() {
		signing[caller] = st.signing(EndpointRow(id, caller, ""), secret, old)
	})
	if err != nil {
		return nil, store.Wrap("signing secrets", err)
	}
	for _, caller := range callers {
		if _, known := signing[caller]; known {
			continue
		}
		s, err := st.SigningSecret(ctx, caller, fresh())
		switch {
		case err == nil:
			signing[caller] = Signing{Secrets: []string{s.Secret}}
		case store.IsPoison(err):
			signing[caller] = Signing{Err: err}
		default:
			return nil, store.Wrap("signing secrets", err)
		}
	}
	return signing, nil
}

const (
	lockSigningSQL   = `select id from webhook_endpoints where caller_id = $1 and url is null for no key update`
	rotateSigningSQL = rotateSecret + `old_secret_until`
)

// RotateSigningSecret replaces a caller's signing secret, or stores its first one. For a day, both secrets sign.
func (st *Store) RotateSigningSecret(ctx context.Context, caller int64, secret string, by store.Operator) (s SigningSecret, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		s = SigningSecret{Secret: secret}
		added, err := st.addSigningSecret(ctx, tx, caller, secret)
		if err == nil && !added {
			s.OldUntil, err = st.rotateSigningSecret(ctx, tx, caller, secret)
		}
		after := store.MustJSON(map[string]any{"old_secret_until": s.OldUntil})
		return store.AuditEntry{Action: "webhook.rotate", Subject: "signing-secret/" + strconv.FormatInt(caller, 10), Before: "", After: after}, err
	})
	return s, store.Wrap("rotate signing secret", err)
}

func (st *Store) rotateSigningSecret(ctx context.Context, tx pgx.Tx, caller int64, secret string) (oldUntil *time.Time, err error) {
	var id task.ID
	if err := tx.QueryRow(ctx, lockSigningSQL, caller).Scan(&id); err != nil {
		return nil, err
	}
	encrypted, err := st.db.Keys.Encrypt(EndpointRow(id, caller, ""), secret)
	if err == nil {
		err = tx.QueryRow(ctx, rotateSigningSQL, id, encrypted).Scan(&oldUntil)
	}
	return oldUntil, err
}
