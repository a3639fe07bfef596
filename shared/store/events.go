package store

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sendonce/sendonce/shared/task"
)

// HasEndpoint is a condition for a row of a table named changed: the caller of the row has an enabled endpoint that
// receives events of the row's kind. receiversSQL of package webhooks has the same condition. If neither an endpoint nor
// a callback URL receives an event, the event is not written, since it would only fill the stream. The statement with
// this condition must be in the last round trip before the commit. So if an endpoint is created while the transaction
// waits for a lock, the endpoint receives the event.
const HasEndpoint = `exists (select from webhook_endpoints e where e.caller_id = changed.caller_id and e.url is not null and e.enabled
    and (e.events = '{}' or changed.kind = any(e.events)))`

// Notifier calls Config.OnEvents and Config.OnFailed after the commit of a transaction.
type Notifier struct {
	db     *DB
	rows   int64 // of event_outbox that the transaction writes, or may write
	failed bool  // a task failed, and the failure counts for alerts
}

// NewNotifier returns the notifier of one transaction.
func (db *DB) NewNotifier() *Notifier { return &Notifier{db: db} }

// AddRows adds a number of rows of event_outbox that the transaction writes or may write.
func (n *Notifier) AddRows(rows int64) { n.rows += rows }

// CountFailure makes Notify call OnFailed after the commit.
func (n *Notifier) CountFailure() { n.failed = true }

// CountRows adds the number of rows of event_outbox that the statement q writes.
func (n *Notifier) CountRows(q *pgx.QueuedQuery) {
	q.Exec(func(tag pgconn.CommandTag) error {
		n.rows += tag.RowsAffected()
		return nil
	})
}

// CollectIDs is CountRows for a statement that writes at most one row and ends with "returning ids". It also reads this
// array into ids.
func (n *Notifier) CollectIDs(q *pgx.QueuedQuery, ids *[]task.ID) {
	q.Query(func(rows pgx.Rows) error {
		return Each(rows, []any{ids}, func() { n.rows++ })
	})
}

// Notify returns err, the outcome of the transaction. If the transaction was committed, Notify calls OnEvents if events
// were or may have been written, and OnFailed if CountFailure was called. If the transaction may have been committed despite err,
// Notify calls both.
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

// Kinds of events, except those of tasks.
const (
	KindWebhookDisabled = "webhook.disabled" // an endpoint was disabled
	KindMessageSaved    = "message.saved"    // an accepted message was saved
	KindMessageRejected = "message.rejected" // an accepted message could not be saved
	KindAlertRaised     = "alert.raised"
	KindAlertCleared    = "alert.cleared"
)
