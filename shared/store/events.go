package store

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sendonce/sendonce/shared/task"
)

// HasEndpoint is the condition that a row of the table changed has an endpoint of its caller_id
// for its kind. receiversSQL of package webhooks has the same condition. Events that neither an
// endpoint nor a callback URL receives are not written, since they would only fill the stream. The
// statement is part of the last round trip before the commit, so an endpoint that was created while
// the transaction waited for a lock receives the event.
const HasEndpoint = `exists (select from webhook_endpoints e where e.caller_id = changed.caller_id and e.url is not null and e.enabled
    and (e.events = '{}' or changed.kind = any(e.events)))`

// Notifier calls Config.OnEvents and Config.OnFailed after the commit of a transaction.
type Notifier struct {
	db     *DB
	rows   int64 // of event_outbox that the transaction writes
	failed bool  // some task failed in a way that counts for alerts
}

// NewNotifier returns the notifier of one transaction.
func (db *DB) NewNotifier() *Notifier { return &Notifier{db: db} }

// CountEvents adds event rows that the transaction writes or may write.
func (n *Notifier) CountEvents(rows int64) { n.rows += rows }

// CountFailure makes Notify call OnFailed.
func (n *Notifier) CountFailure() { n.failed = true }

// CountRows adds the number of event rows that a statement writes.
func (n *Notifier) CountRows(q *pgx.QueuedQuery) {
	q.Exec(func(tag pgconn.CommandTag) error {
		n.rows += tag.RowsAffected()
		return nil
	})
}

// CollectIDs counts the event row that a statement writes, if any, and reads its ids.
func (n *Notifier) CollectIDs(q *pgx.QueuedQuery, ids *[]task.ID) {
	q.Query(func(rows pgx.Rows) error {
		return Each(rows, []any{ids}, func() { n.rows++ })
	})
}

// Notify returns err, the outcome of the transaction. If the transaction is committed, or may
// be, it calls OnEvents if events were written and OnFailed if failures count for alerts.
func (n *Notifier) Notify(err error) error {
	if n == nil || err != nil && !MayHaveCommitted(err) {
		return err
	}
	if n.rows > 0 || err != nil {
		n.db.OnEvents()
	}
	if n.failed || err != nil {
		n.db.onFailed()
	}
	return err
}

// Kinds of events that are not of tasks.
const (
	KindWebhookDisabled = "webhook.disabled" // an endpoint was disabled
	KindMessageSaved    = "message.saved"    // an accepted message
	KindMessageRejected = "message.rejected" // an accepted message
	KindAlertRaised     = "alert.raised"
	KindAlertCleared    = "alert.cleared"
)
