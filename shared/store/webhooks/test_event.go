package webhooks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const maxTests = 10 // test events for one endpoint within a minute

const (
	countTestsSQL  = `select count(*) from webhook_deliveries where endpoint_id = $1 and id >= $2 and event_type = $3`
	insertEventSQL = `insert into webhook_events (id, payload) values ($1, $2)`
	insertTestSQL  = `
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url) values ($1, $2, $3, $4, $5, $6, $7)`
)

// SendTest records a delivery of a test event to an enabled endpoint, whatever events the endpoint subscribes to; deliver
// posts it. The error is task.CodeNotFound as for Endpoint, task.CodeConflict if the endpoint is disabled or its caller is
// revoked, or task.CodeQuota after 10 test events for the endpoint within a minute.
func (st *Store) SendTest(ctx context.Context, id task.ID, callerID *int64, event RecordedEvent, by store.Operator) (Delivery, error) {
	delivery := task.NewID()
	err := st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		e, err := lockTestable(ctx, tx, id, callerID, event.Type)
		if err != nil {
			return store.AuditEntry{}, err
		}
		var batch pgx.Batch
		batch.Queue(insertEventSQL, event.ID, event.Payload)
		batch.Queue(insertTestSQL, delivery, event.ID, e.ID, e.CallerID, event.Type, event.Subject, e.URL)
		after := store.MustJSON(map[string]any{"delivery_id": delivery})
		return store.AuditEntry{Action: "webhook.test", Subject: e.subject(), Before: "", After: after}, tx.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return Delivery{}, store.Wrap("webhook.test", err)
	}
	return st.Delivery(ctx, delivery, callerID)
}

// lockTestable locks an endpoint and returns it if it may get a test event now.
func lockTestable(ctx context.Context, tx pgx.Tx, id task.ID, callerID *int64, eventType string) (Endpoint, error) {
	e, err := store.QueryOne[Endpoint](ctx, tx, "endpoint", lockEndpointSQL, id, callerID)
	if err != nil {
		return e, err
	}
	if err := refuseRevoked(ctx, tx, e.CallerID); err != nil {
		return e, err
	}
	if !e.Enabled {
		return e, task.Refuse(task.CodeConflict, "this endpoint is disabled: enable it first")
	}
	var recent int
	if err := tx.QueryRow(ctx, countTestsSQL, id, task.IDFloor(time.Now().Add(-time.Minute)), eventType).Scan(&recent); err != nil {
		return e, err
	}
	if recent >= maxTests {
		return e, &task.Error{Code: task.CodeQuota, Message: "this endpoint had 10 test events within a minute: try again in a minute", RetryAfter: time.Minute}
	}
	return e, nil
}
