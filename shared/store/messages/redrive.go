package messages

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// operatorChange is a change that an operator makes to messages.
type operatorChange struct {
	action string // in operator_actions
	apply  func(m msg.Message, now time.Time) (msg.Message, error)
}

var redrive = operatorChange{"message.redrive", msg.Message.Redrive}

func abandonBy(by store.Operator) operatorChange {
	return operatorChange{"message.abandon", func(m msg.Message, _ time.Time) (msg.Message, error) { return m.Abandon(by.Name) }}
}

// Redrive makes a message due at once, with all its sends again. The error is task.CodeNotFound if
// there is no such message, or task.CodeConflict if the message is archived, or final and not abandoned.
func (st *Store) Redrive(ctx context.Context, id task.ID, by store.Operator) (Detail, error) {
	return st.changeMessage(ctx, id, redrive, by)
}

// Abandon ends a message: it is not sent any more. If the message is abandoned already, even archived, nothing changes and
// there is no error. Otherwise the errors are those of Redrive.
func (st *Store) Abandon(ctx context.Context, id task.ID, by store.Operator) (Detail, error) {
	return st.changeMessage(ctx, id, abandonBy(by), by)
}

func (st *Store) changeMessage(ctx context.Context, id task.ID, change operatorChange, by store.Operator) (Detail, error) {
	changeOnce := func(tx pgx.Tx) (store.AuditEntry, error) {
		var locks pgx.Batch
		locked := queueMessageLock(&locks, id)
		if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
			return store.AuditEntry{}, err
		}
		m, err := locked.get(id)
		if task.CodeOf(err) == task.CodeNotFound {
			m, err = messageByID(ctx, tx, archivedMessageSQL, id)
		}
		if err != nil {
			return store.AuditEntry{}, err
		}
		after, err := change.apply(m.Message, locked.now)
		if err != nil {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, err.Error())
		}
		if m.Archived && after != m.Message {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, "the message is archived and cannot be redriven; submit it again with another client_msg_id")
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, []messageChange{{id, m.Message, after}})
		return store.AuditEntry{Action: change.action, Subject: id.String(), Before: messageJSON(m.Message), After: messageJSON(after)}, tx.SendBatch(ctx, &batch).Close()
	}
	if err := untilLocked(func() error { return st.db.Audited(ctx, by, changeOnce) }); err != nil {
		return Detail{}, store.Wrap(change.action, err)
	}
	return st.ByID(ctx, id)
}

// RecordReveal adds an audit entry for each message whose data was shown to an operator.
func (st *Store) RecordReveal(ctx context.Context, ids []task.ID, by store.Operator) error {
	return store.Wrap("record reveal", st.db.RecordReveal(ctx, by, "message.reveal", `{"revealed":["data"]}`, store.Column(ids, task.ID.String)...))
}

// StuckFilter selects stuck messages. A zero field selects all.
type StuckFilter struct {
	Status    *msg.Status // msg.Sending or msg.Sent
	IDs       []task.ID
	OlderThan time.Duration // without a change for at least this long
}

func (f StuckFilter) args() []any {
	return []any{f.Status, f.IDs, f.OlderThan.Seconds()}
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
	return st.changeStuck(ctx, f, limit, redrive, by)
}

// AbandonStuck is RedriveStuck for Abandon.
func (st *Store) AbandonStuck(ctx context.Context, f StuckFilter, limit int, by store.Operator) (int, error) {
	return st.changeStuck(ctx, f, limit, abandonBy(by), by)
}

func (st *Store) changeStuck(ctx context.Context, f StuckFilter, limit int, change operatorChange, by store.Operator) (n int, err error) {
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		changes, err := lockStuck(ctx, tx, f, limit, change)
		if err != nil {
			return err
		}
		var batch pgx.Batch
		queueMessageChanges(&batch, changes)
		for _, c := range changes {
			by.QueueAudit(&batch, change.action, c.id.String(), messageJSON(c.before), messageJSON(c.after))
		}
		n = len(changes)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return n, store.Wrap(change.action, err)
}

// lockStuck locks stuck messages and returns how they change.
func lockStuck(ctx context.Context, tx pgx.Tx, f StuckFilter, limit int, change operatorChange) (changes []messageChange, err error) {
	rows, err := tx.Query(ctx, lockStuckMessagesSQL, append(f.args(), limit)...)
	if err != nil {
		return nil, err
	}
	var refused error
	err = scanMessages(rows, func(m Detail, now time.Time) {
		after, err := change.apply(m.Message, now)
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
