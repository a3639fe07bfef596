package webhooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Endpoint is a URL to which a caller's events are posted, without its signing secret.
type Endpoint struct {
	ID             task.ID
	CallerID       int64
	URL            string
	Description    string
	Events         []string // the kinds that it receives; empty = all
	Format         string   // one of Formats
	Enabled        bool
	DisabledReason string     // gone, failing or by_hand; "" while it is enabled
	DisabledAt     *time.Time // nil while it is enabled
	FailingSince   *time.Time // the first failure since the last success
	CreatedAt      time.Time
	RotatedAt      *time.Time
	OldSecretUntil *time.Time // until when events are also signed with the old secret; nil = there is none
}

func (e Endpoint) subject() string { return "webhook/" + e.ID.String() }

func (e Endpoint) json() string {
	return store.MustJSON(map[string]any{
		"caller_id": e.CallerID, "url": e.URL, "description": e.Description, "events": e.Events, "format": e.Format, "disabled_reason": e.DisabledReason,
		"disabled_at": e.DisabledAt, "failing_since": e.FailingSince, "rotated_at": e.RotatedAt,
	})
}

// The formats in which events are posted: as CloudEvents, or as text for a chat robot.
const (
	FormatCloudEvents = "cloudevents"
	FormatSlack       = "slack"
	FormatDingTalk    = "dingtalk"
	FormatWeCom       = "wecom"
	FormatFeishu      = "feishu"
)

// Formats are all formats, the default first.
var Formats = []string{FormatCloudEvents, FormatSlack, FormatDingTalk, FormatWeCom, FormatFeishu}

// NewEndpoint is an endpoint to be added.
type NewEndpoint struct {
	CallerID    int64
	URL         string
	Description string
	Events      []string
	Format      string // "" = FormatCloudEvents
	Secret      string // "" = none, which only a robot may have
}

const endpointColumns = `id, caller_id, url, coalesce(description, '') as description, events, format, enabled, coalesce(disabled_reason, '') as disabled_reason,
    disabled_at, failing_since, created_at, rotated_at, case when old_secret_until > now() then old_secret_until end as old_secret_until`

// maxEndpoints is how many a caller may have.
const maxEndpoints = 20

const (
	lockEndpointsOfSQL = `select pg_advisory_xact_lock(7310002, hashint8($1))`
	countEndpointsSQL  = `select count(*) from webhook_endpoints where caller_id = $1 and url is not null`
	insertEndpointSQL  = `
insert into webhook_endpoints (id, caller_id, url, description, events, format, secret) values ($1, $2, $3, nullif($4, ''), $5, $6, $7)
returning ` + endpointColumns
)

// AddEndpoint adds a URL that receives a caller's events from now on.
// The error is task.CodeConflict if the caller has 20 already.
func (st *Store) AddEndpoint(ctx context.Context, n NewEndpoint, by store.Operator) (e Endpoint, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		var have int
		var batch pgx.Batch
		batch.Queue(lockEndpointsOfSQL, n.CallerID)
		batch.Queue(countEndpointsSQL, n.CallerID).QueryRow(func(row pgx.Row) error { return row.Scan(&have) })
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return store.AuditEntry{}, err
		}
		if have >= maxEndpoints {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, "this caller has "+strconv.Itoa(maxEndpoints)+" endpoints; delete one first")
		}
		id := task.NewID()
		secret, err := st.encryptEndpoint(id, n)
		if err != nil {
			return store.AuditEntry{}, err
		}
		e, err = store.QueryOne[Endpoint](ctx, tx, "endpoint", insertEndpointSQL, id, n.CallerID, n.URL, n.Description, store.NotNull(n.Events), cmp.Or(n.Format, FormatCloudEvents), secret)
		return store.AuditEntry{Action: "webhook.create", Subject: e.subject(), Before: "", After: e.json()}, err
	})
	return e, store.Wrap("add endpoint", err)
}

// encryptEndpoint returns what is stored as the secret of a new endpoint; nil if it has none.
func (st *Store) encryptEndpoint(id task.ID, n NewEndpoint) (*string, error) {
	if n.Secret == "" {
		return nil, nil
	}
	secret, err := st.db.Keys.Encrypt(EndpointRow(id, n.CallerID, n.URL), n.Secret)
	return &secret, err
}

const endpointsSQL = `
select ` + endpointColumns + ` from webhook_endpoints
where url is not null and ($1::bigint is null or caller_id = $1) and id > $2
order by id
limit $3`

// Endpoints lists the endpoints of a caller by id, or all endpoints if callerID is nil.
// after is the last id of the previous page, zero for the first page. more reports
// whether there is another page.
func (st *Store) Endpoints(ctx context.Context, callerID *int64, after task.ID, limit int) (page []Endpoint, more bool, err error) {
	page, more, err = store.QueryPage[Endpoint](ctx, st.db.Read, limit, endpointsSQL, callerID, after)
	return page, more, store.Wrap("endpoints", err)
}

const endpointSQL = `
select ` + endpointColumns + ` from webhook_endpoints where id = $1 and url is not null and ($2::bigint is null or caller_id = $2)`

// Endpoint returns an endpoint of a caller, or of any caller if callerID is nil. The error is
// task.CodeNotFound if there is none.
func (st *Store) Endpoint(ctx context.Context, id task.ID, callerID *int64) (Endpoint, error) {
	e, err := store.QueryOne[Endpoint](ctx, st.db.Read, "endpoint", endpointSQL, id, callerID)
	return e, store.Wrap("endpoint", err)
}

const lockEndpointSQL = endpointSQL + ` for no key update`

const isRevokedSQL = `select exists (select from callers where id = $1 and revoked_at is not null)`

// refuseRevoked returns task.CodeConflict if the caller is revoked: nothing may be posted to it.
func refuseRevoked(ctx context.Context, tx pgx.Tx, caller int64) error {
	var revoked bool
	err := tx.QueryRow(ctx, isRevokedSQL, caller).Scan(&revoked)
	if err == nil && revoked {
		err = task.Refuse(task.CodeConflict, "the caller of this endpoint is revoked: no events are posted to it")
	}
	return err
}

// changeEndpoint locks an endpoint and changes it. change returns the statement, "" for no
// change, and its arguments after the id.
func (st *Store) changeEndpoint(ctx context.Context, id task.ID, callerID *int64, action string, by store.Operator,
	change func(tx pgx.Tx, e Endpoint) (sql string, args []any, err error)) (e Endpoint, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, err := store.QueryOne[Endpoint](ctx, tx, "endpoint", lockEndpointSQL, id, callerID)
		if err != nil {
			return store.AuditEntry{}, err
		}
		sql, args, err := change(tx, before)
		if e = before; err != nil || sql == "" {
			return store.AuditEntry{}, err
		}
		e, err = store.QueryOne[Endpoint](ctx, tx, "endpoint", sql, append([]any{id}, args...)...)
		return store.AuditEntry{Action: action, Subject: e.subject(), Before: before.json(), After: e.json()}, err
	})
	return e, store.Wrap(action, err)
}

const enableEndpointSQL = `
update webhook_endpoints set enabled = true, disabled_reason = null, disabled_at = null, failing_since = null
where id = $1 returning ` + endpointColumns

// EnableEndpoint enables an endpoint. Its pending deliveries are due again. The error is
// task.CodeNotFound as for Endpoint, or task.CodeConflict if its caller is revoked.
func (st *Store) EnableEndpoint(ctx context.Context, id task.ID, callerID *int64, by store.Operator) (Endpoint, error) {
	return st.changeEndpoint(ctx, id, callerID, "webhook.enable", by, func(tx pgx.Tx, e Endpoint) (string, []any, error) {
		if err := refuseRevoked(ctx, tx, e.CallerID); err != nil || e.Enabled {
			return "", nil, err
		}
		return enableEndpointSQL, nil, nil
	})
}

const disableEndpointSQL = `
update webhook_endpoints set enabled = false, disabled_reason = $2, disabled_at = now()
where id = $1 returning ` + endpointColumns

// DisableEndpoint disables an endpoint. Its pending deliveries wait until it is enabled. The
// error is task.CodeNotFound as for Endpoint.
func (st *Store) DisableEndpoint(ctx context.Context, id task.ID, callerID *int64, by store.Operator) (Endpoint, error) {
	return st.changeEndpoint(ctx, id, callerID, "webhook.disable", by, func(_ pgx.Tx, e Endpoint) (string, []any, error) {
		if !e.Enabled {
			return "", nil, nil
		}
		return disableEndpointSQL, []any{msg.DisabledManually}, nil
	})
}

// rotateEndpointSQL keeps the old secret valid for a day, so that receivers have time to
// install the new one.
const rotateEndpointSQL = `
update webhook_endpoints set old_secret = secret, old_secret_until = now() + interval '24 hours', secret = $2, rotated_at = now()
where id = $1 returning ` + endpointColumns

// RotateEndpoint replaces the secret of an endpoint. For a day, events are signed with both
// secrets. The error is task.CodeNotFound as for Endpoint, or task.CodeConflict for a robot, whose secret
// is made elsewhere.
func (st *Store) RotateEndpoint(ctx context.Context, id task.ID, callerID *int64, secret string, by store.Operator) (Endpoint, error) {
	return st.changeEndpoint(ctx, id, callerID, "webhook.rotate", by, func(_ pgx.Tx, e Endpoint) (string, []any, error) {
		if e.Format != FormatCloudEvents {
			return "", nil, task.Refuse(task.CodeConflict, "this endpoint is a robot, whose secret is made in its chat group: delete this endpoint and register it again with the robot's new secret")
		}
		encrypted, err := st.db.Keys.Encrypt(EndpointRow(id, e.CallerID, e.URL), secret)
		return rotateEndpointSQL, []any{encrypted}, err
	})
}

// endedAtOnce is how many pending deliveries are ended in one transaction.
const endedAtOnce = 500

const (
	deleteEndpointSQL = `delete from webhook_endpoints where id = $1`

	endDeliveries    = `update webhook_deliveries set state = 2, next_at = null, finished_at = now() where id = any(array(`
	endDeliveriesSQL = endDeliveries + `
    select id from webhook_deliveries where state = 0 and caller_id = $1 and endpoint_id = $2
    order by next_at limit $3 for update skip locked
))`
	// endUndeliverableSQL finds the endpoints as claimDeliveriesSQL does.
	endUndeliverableSQL = deliverySources + endDeliveries + `
    select d.id from source s cross join lateral (
        select id from webhook_deliveries where state = 0 and caller_id = s.caller_id and endpoint_id = s.endpoint_id
        order by next_at limit $1 for update skip locked
    ) d
    where not exists (select from webhook_endpoints e where e.id = s.endpoint_id)
    limit $1
))`
)

// EndUndeliverable ends pending deliveries to deleted endpoints as failed, at most 500
// in one call. more reports that there may be others.
func (st *Store) EndUndeliverable(ctx context.Context) (more bool, err error) {
	tag, err := st.db.Hot.Exec(ctx, endUndeliverableSQL, endedAtOnce)
	return tag.RowsAffected() == endedAtOnce, store.Wrap("end undeliverable", err)
}

// DeleteEndpoint deletes an endpoint. Its deliveries can still be read. It fails up to 500
// pending deliveries, so that the transaction is short; EndUndeliverable fails the others. The
// error is task.CodeNotFound as for Endpoint.
func (st *Store) DeleteEndpoint(ctx context.Context, id task.ID, callerID *int64, by store.Operator) error {
	return store.Wrap("webhook.delete", st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		e, err := store.QueryOne[Endpoint](ctx, tx, "endpoint", lockEndpointSQL, id, callerID)
		if err != nil {
			return store.AuditEntry{}, err
		}
		var batch pgx.Batch
		batch.Queue(endDeliveriesSQL, e.CallerID, id, endedAtOnce)
		batch.Queue(deleteEndpointSQL, id)
		return store.AuditEntry{Action: "webhook.delete", Subject: e.subject(), Before: e.json(), After: ""}, tx.SendBatch(ctx, &batch).Close()
	}))
}

// EndpointRow returns the additional authenticated data with which the secrets of a row of
// webhook_endpoints are encrypted. url is "" for a caller's signing secret. Without this data, somebody
// who may insert rows could copy a secret to another caller, or show the secret of an endpoint
// as a caller's signing secret.
func EndpointRow(id task.ID, caller int64, url string) string {
	return fmt.Sprintf("webhook_endpoints/%s caller %d url %s", id, caller, url)
}

// SigningSecret signs a caller's events to callback URLs and its messages to URLs.
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

// addSigningSecret stores the first secret of a caller. added is false if the caller has one.
func (st *Store) addSigningSecret(ctx context.Context, in store.Execer, caller int64, fresh string) (added bool, err error) {
	id := task.NewID()
	secret, err := st.db.Keys.Encrypt(EndpointRow(id, caller, ""), fresh)
	if err != nil {
		return false, err
	}
	tag, err := in.Exec(ctx, addSigningSQL, id, caller, secret)
	return tag.RowsAffected() == 1, err
}

// SigningSecret returns a caller's secret. If there is none, it stores and returns fresh. The error
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

// Signing has the secrets that sign for an endpoint or a caller.
type Signing struct {
	Secrets []string // newest first; none for a robot that demands no signature
	Err     error    // why there are no Secrets, such as store.ErrDecrypt; nil = there are
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

// SigningSecrets returns the secrets of each of the callers. fresh makes the secret of a caller
// that has none. If a secret cannot be decrypted, or no such caller exists, only the Signing of
// that caller has an error.
func (st *Store) SigningSecrets(ctx context.Context, callers []int64, fresh func() string) (map[int64]Signing, error) {
	found := map[int64]Signing{}
	var id task.ID
	var caller int64
	var secret, old *string
	err := store.QueryEach(ctx, st.db.Hot, knownSecretsSQL, []any{callers}, []any{&id, &caller, &secret, &old}, func() {
		found[caller] = st.signing(EndpointRow(id, caller, ""), secret, old)
	})
	for _, caller := range callers {
		if err != nil {
			break
		}
		if _, known := found[caller]; !known {
			var first SigningSecret
			first, err = st.SigningSecret(ctx, caller, fresh())
			found[caller] = Signing{Secrets: []string{first.Secret}}
			if store.IsPoison(err) {
				found[caller], err = Signing{Err: err}, nil
			}
		}
	}
	return found, store.Wrap("signing secrets", err)
}

const (
	lockSigningSQL   = `select id from webhook_endpoints where caller_id = $1 and url is null for no key update`
	rotateSigningSQL = `
update webhook_endpoints set old_secret = secret, old_secret_until = now() + interval '24 hours', secret = $2, rotated_at = now()
where id = $1 returning old_secret_until`
)

// RotateSigningSecret replaces a caller's secret. For a day, events are signed with both.
func (st *Store) RotateSigningSecret(ctx context.Context, caller int64, secret string, by store.Operator) (s SigningSecret, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		s = SigningSecret{Secret: secret}
		added, err := st.addSigningSecret(ctx, tx, caller, secret)
		if err == nil && !added {
			err = st.rotateSigningSecret(ctx, tx, caller, &s)
		}
		return store.AuditEntry{Action: "webhook.rotate", Subject: "signing-secret/" + strconv.FormatInt(caller, 10), Before: "", After: store.MustJSON(map[string]any{"old_secret_until": s.OldUntil})}, err
	})
	return s, store.Wrap("rotate signing secret", err)
}

func (st *Store) rotateSigningSecret(ctx context.Context, tx pgx.Tx, caller int64, s *SigningSecret) error {
	var id task.ID
	if err := tx.QueryRow(ctx, lockSigningSQL, caller).Scan(&id); err != nil {
		return err
	}
	encrypted, err := st.db.Keys.Encrypt(EndpointRow(id, caller, ""), s.Secret)
	if err != nil {
		return err
	}
	return tx.QueryRow(ctx, rotateSigningSQL, id, encrypted).Scan(&s.OldUntil)
}
