package webhooks

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Endpoint is a URL to which a caller's events are posted.
type Endpoint struct {
	ID             task.ID
	CallerID       int64
	URL            string
	Description    string
	Events         []string // the kinds of events that the endpoint receives; empty = all
	Format         string   // one of Formats
	Enabled        bool
	DisabledReason string     // gone, failing or by_hand (also after its caller was revoked); "" while the endpoint is enabled
	DisabledAt     *time.Time // nil while the endpoint is enabled
	FailingSince   *time.Time // when the first try after the last success failed; nil = no try has failed since
	CreatedAt      time.Time
	RotatedAt      *time.Time // when the secret was last replaced; nil = never
	OldSecretUntil *time.Time // until when the old secret signs events too; nil = no old secret does
}

func (e Endpoint) subject() string { return "webhook/" + e.ID.String() }

func (e Endpoint) json() string {
	return store.MustJSON(map[string]any{
		"caller_id": e.CallerID, "url": e.URL, "description": e.Description, "events": e.Events, "format": e.Format, "disabled_reason": e.DisabledReason,
		"disabled_at": e.DisabledAt, "failing_since": e.FailingSince, "rotated_at": e.RotatedAt,
	})
}

// NewEndpoint is an endpoint to add.
type NewEndpoint struct {
	CallerID    int64
	URL         string
	Description string
	Events      []string
	Format      string // "" = FormatCloudEvents
	Secret      string // "" = none, allowed only for a robot
}

const endpointColumns = `id, caller_id, url, coalesce(description, '') as description, events, format, enabled, coalesce(disabled_reason, '') as disabled_reason,
    disabled_at, failing_since, created_at, rotated_at, case when old_secret_until > now() then old_secret_until end as old_secret_until`

const maxEndpoints = 20 // of a caller

const (
	lockEndpointsOfCallerSQL = `select pg_advisory_xact_lock(7310002, hashint8($1))`
	countEndpointsSQL        = `select count(*) from webhook_endpoints where caller_id = $1 and url is not null`
	insertEndpointSQL        = `
insert into webhook_endpoints (id, caller_id, url, description, events, format, secret) values ($1, $2, $3, nullif($4, ''), $5, $6, $7)
returning ` + endpointColumns
)

// AddEndpoint adds a URL that receives a caller's events from now on. The error is task.CodeConflict if the
// caller has 20 already.
func (st *Store) AddEndpoint(ctx context.Context, n NewEndpoint, by store.Operator) (e Endpoint, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		var have int
		var batch pgx.Batch
		batch.Queue(lockEndpointsOfCallerSQL, n.CallerID)
		batch.Queue(countEndpointsSQL, n.CallerID).QueryRow(func(row pgx.Row) error { return row.Scan(&have) })
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return store.AuditEntry{}, err
		}
		if have >= maxEndpoints {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, "this caller has "+strconv.Itoa(maxEndpoints)+" endpoints; delete one first")
		}
		id := task.NewID()
		var secret *string
		if n.Secret != "" {
			encrypted, err := st.db.Keys.Encrypt(EndpointRow(id, n.CallerID, n.URL), n.Secret)
			if err != nil {
				return store.AuditEntry{}, err
			}
			secret = &encrypted
		}
		e, err = store.QueryOne[Endpoint](ctx, tx, "endpoint", insertEndpointSQL, id, n.CallerID, n.URL, n.Description, store.NotNull(n.Events), cmp.Or(n.Format, FormatCloudEvents), secret)
		return store.AuditEntry{Action: "webhook.create", Subject: e.subject(), Before: "", After: e.json()}, err
	})
	return e, store.Wrap("add endpoint", err)
}

const endpointsSQL = `
select ` + endpointColumns + ` from webhook_endpoints
where url is not null and ($1::bigint is null or caller_id = $1) and id > $2
order by id
limit $3`

// Endpoints lists the endpoints of a caller by id, or all endpoints if callerID is nil. after is the last id of
// the previous page, zero for the first page. more reports whether there is another page.
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

// refuseRevoked returns an error with task.CodeConflict if the caller is revoked.
func refuseRevoked(ctx context.Context, tx pgx.Tx, caller int64) error {
	var revoked bool
	err := tx.QueryRow(ctx, isRevokedSQL, caller).Scan(&revoked)
	if err == nil && revoked {
		err = task.Refuse(task.CodeConflict, "the caller of this endpoint is revoked: no events are posted to it")
	}
	return err
}

// changeEndpoint locks an endpoint and changes it. change returns the statement and its arguments after the id;
// "" means no change.
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

// EnableEndpoint enables an endpoint. From then on its pending deliveries are sent when they are due. The error is
// task.CodeNotFound as for Endpoint, or task.CodeConflict if the caller of the endpoint is revoked.
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

// DisableEndpoint disables an endpoint. Its pending deliveries wait until the endpoint is enabled. The
// error is task.CodeNotFound as for Endpoint.
func (st *Store) DisableEndpoint(ctx context.Context, id task.ID, callerID *int64, by store.Operator) (Endpoint, error) {
	return st.changeEndpoint(ctx, id, callerID, "webhook.disable", by, func(_ pgx.Tx, e Endpoint) (string, []any, error) {
		if !e.Enabled {
			return "", nil, nil
		}
		return disableEndpointSQL, []any{msg.DisabledManually}, nil
	})
}

const rotateEndpointSQL = rotateSecret + endpointColumns

// RotateEndpoint replaces the secret of an endpoint. Events are signed with both secrets for a day, so that the
// receiver has time to install the new one. The error is task.CodeNotFound as for Endpoint, or task.CodeConflict
// for a robot.
func (st *Store) RotateEndpoint(ctx context.Context, id task.ID, callerID *int64, secret string, by store.Operator) (Endpoint, error) {
	return st.changeEndpoint(ctx, id, callerID, "webhook.rotate", by, func(_ pgx.Tx, e Endpoint) (string, []any, error) {
		if e.Format != FormatCloudEvents {
			return "", nil, task.Refuse(task.CodeConflict, "this endpoint is a robot, whose secret is made in its chat group: delete this endpoint and register it again with the robot's new secret")
		}
		encrypted, err := st.db.Keys.Encrypt(EndpointRow(id, e.CallerID, e.URL), secret)
		return rotateEndpointSQL, []any{encrypted}, err
	})
}

const endedAtOnce = 500 // maximum pending deliveries that one transaction marks as failed

const (
	deleteEndpointSQL = `delete from webhook_endpoints where id = $1`

	endDeliveries    = `update webhook_deliveries set state = 2, next_at = null, finished_at = now() where id = any(array(`
	endDeliveriesSQL = endDeliveries + `
    select id from webhook_deliveries where state = 0 and caller_id = $1 and endpoint_id = $2
    order by next_at limit $3 for update skip locked
))`
	endUndeliverableSQL = DeliverySources + endDeliveries + `
    select d.id from source s cross join lateral (
        select id from webhook_deliveries where state = 0 and caller_id = s.caller_id and endpoint_id = s.endpoint_id
        order by next_at limit $1 for update skip locked
    ) d
    where not exists (select from webhook_endpoints e where e.id = s.endpoint_id)
    limit $1
))`
)

// EndUndeliverable marks at most 500 pending deliveries to deleted endpoints as failed. It skips locked deliveries.
// more reports whether more deliveries may be left, apart from locked ones.
func (st *Store) EndUndeliverable(ctx context.Context) (more bool, err error) {
	tag, err := st.db.Hot.Exec(ctx, endUndeliverableSQL, endedAtOnce)
	return tag.RowsAffected() == endedAtOnce, store.Wrap("end undeliverable", err)
}

// DeleteEndpoint deletes an endpoint. Its deliveries can still be read. DeleteEndpoint marks at most 500 of its pending
// deliveries as failed, so that the transaction is short; EndUndeliverable marks the others. The error is
// task.CodeNotFound as for Endpoint.
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
