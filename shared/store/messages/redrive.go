package messages

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// messageJSON is a message in operator_actions.
func messageJSON(m msg.Message) string {
	return store.MustJSON(map[string]any{
		"state": m.State(), "status": m.Status, "epoch": m.Epoch, "remaining_sends": m.Remaining, "last_error": m.LastError,
	})
}

// decision applies an operator's decision to a message.
type decision func(m msg.Message, now time.Time) (msg.Message, error)

func redrive(m msg.Message, now time.Time) (msg.Message, error) { return m.Redrive(now) }

func abandonBy(by store.Operator) decision {
	return func(m msg.Message, _ time.Time) (msg.Message, error) { return m.Abandon(by.Name) }
}

// The actions in operator_actions.
const (
	redriveAction = "message.redrive"
	abandonAction = "message.abandon"
)

// Redrive makes a message due at once, with all its sends again. The error is task.CodeNotFound if
// there is no such message, or task.CodeConflict if it is archived, or final and not abandoned.
func (st *Store) Redrive(ctx context.Context, id task.ID, by store.Operator) (Detail, error) {
	return st.decideMessage(ctx, id, redriveAction, redrive, by)
}

// Abandon ends a message without delivery. Abandoning it again changes nothing. Errors are
// those of Redrive.
func (st *Store) Abandon(ctx context.Context, id task.ID, by store.Operator) (Detail, error) {
	return st.decideMessage(ctx, id, abandonAction, abandonBy(by), by)
}

func (st *Store) decideMessage(ctx context.Context, id task.ID, action string, decide decision, by store.Operator) (Detail, error) {
	err := st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		var locks pgx.Batch
		locked := queueMessageLocks(&locks, id)
		if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
			return store.AuditEntry{}, err
		}
		m, err := locked.get(id)
		if task.CodeOf(err) == task.CodeNotFound {
			if m, err = archivedMessage(ctx, tx, id); err == nil {
				return store.AuditEntry{}, decideArchivedMessage(m, decide)
			}
		}
		if err != nil {
			return store.AuditEntry{}, err
		}
		after, err := decide(m.Message, locked.now)
		if err != nil {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, err.Error())
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, []messageChange{{id, m.Message, after}})
		return store.AuditEntry{Action: action, Subject: id.String(), Before: messageJSON(m.Message), After: messageJSON(after)}, tx.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return Detail{}, store.Wrap(action, err)
	}
	return st.ByID(ctx, id)
}

// RecordReveal adds audit entries: an operator was shown the data of messages.
func (st *Store) RecordReveal(ctx context.Context, ids []task.ID, by store.Operator) error {
	subjects := make([]string, len(ids))
	for i, id := range ids {
		subjects[i] = id.String()
	}
	return store.Wrap("record reveal", st.db.RecordReveal(ctx, by, "message.reveal", `{"revealed":["data"]}`, subjects...))
}

// StuckFilter selects stuck messages. A zero field selects all.
type StuckFilter struct {
	Status    *msg.Status // msg.Sending or msg.Sent
	IDs       []task.ID
	OlderThan time.Duration // stuck for at least as long
}

func (f StuckFilter) args() []any {
	var status *int16
	if f.Status != nil {
		n := int16(*f.Status)
		status = &n
	}
	return []any{status, f.IDs, f.OlderThan.Seconds()}
}

const stuckFilter = `
from message_live l
where l.remaining_sends = 0 and ($1::smallint is null or l.status = $1) and ($2::uuid[] is null or l.id = any($2))
    and l.updated_at <= now() - make_interval(secs => $3)`

const countStuckMessagesSQL = `select count(*)` + stuckFilter

// CountStuck counts the stuck messages that f selects.
func (st *Store) CountStuck(ctx context.Context, f StuckFilter) (n int, err error) {
	err = st.db.Read.QueryRow(ctx, countStuckMessagesSQL, f.args()...).Scan(&n)
	return n, store.Wrap("count stuck messages", err)
}

const lockStuckMessagesSQL = `
with l as materialized (
    select *` + stuckFilter + ` and exists (select from messages where messages.id = l.id offset 0)
    order by l.id
    limit $4
    for update skip locked
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from l` + bodyOfLive

// RedriveStuck redrives up to limit stuck messages in one transaction, with an audit entry for
// each, and returns how many were changed. Locked messages are skipped.
func (st *Store) RedriveStuck(ctx context.Context, f StuckFilter, limit int, by store.Operator) (int, error) {
	return st.decideStuck(ctx, f, limit, redriveAction, redrive, by)
}

// AbandonStuck is RedriveStuck with Abandon.
func (st *Store) AbandonStuck(ctx context.Context, f StuckFilter, limit int, by store.Operator) (int, error) {
	return st.decideStuck(ctx, f, limit, abandonAction, abandonBy(by), by)
}

func (st *Store) decideStuck(ctx context.Context, f StuckFilter, limit int, action string, decide decision, by store.Operator) (n int, err error) {
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		changes, err := decideLocked(ctx, tx, f, limit, decide)
		if err != nil {
			return err
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, changes)
		for _, c := range changes {
			by.QueueAudit(&batch, action, c.id.String(), messageJSON(c.before), messageJSON(c.after))
		}
		n = len(changes)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return n, store.Wrap(action, err)
}

func decideLocked(ctx context.Context, tx pgx.Tx, f StuckFilter, limit int, decide decision) (changes []messageChange, err error) {
	rows, err := tx.Query(ctx, lockStuckMessagesSQL, append(f.args(), limit)...)
	if err != nil {
		return nil, err
	}
	var refused error
	err = scanMessages(rows, func(m Detail, now time.Time) {
		after, err := decide(m.Message, now)
		if err != nil {
			refused = err
		}
		changes = append(changes, messageChange{m.ID, m.Message, after})
	})
	if err == nil {
		err = refused
	}
	return changes, err
}
