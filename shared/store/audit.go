package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// Operator is the person or program that makes a manual change.
type Operator struct {
	CallerID  int64
	Name      string
	RequestID string
	Reason    string // the operator's reason for the change; "" = none
}

// StoredName returns the name as it is stored, cut to 50 characters.
func (o Operator) StoredName() string { return task.Cut(Storable(o.Name), 50) }

const insertActionSQL = `
insert into operator_actions (caller_id, caller_name, request_id, action, subject, reason, before, after)
values ($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, '')::jsonb, nullif($8, '')::jsonb)`

// QueueAudit adds to batch the statement that writes an audit entry, in the transaction of the change. Nothing else writes
// operator_actions. before and after are JSON or "".
func (o Operator) QueueAudit(batch *pgx.Batch, action, subject, before, after string) {
	batch.Queue(insertActionSQL, o.CallerID, o.StoredName(), o.RequestID, action, subject, Storable(o.Reason), before, after)
}

// revealedSQL finds the subjects for which a reveal to this caller was recorded within the last hour.
const revealedSQL = `
select subject from operator_actions where subject = any($1) and action = $2 and caller_id = $3 and created_at > now() - interval '1 hour'`

// RecordReveal adds an audit entry for each subject whose hidden data was shown to the operator. after is JSON, the same in
// all entries. If the operator has an entry with the same action and subject from the last hour, no entry is added, so that
// reveals cannot fill the disk.
func (db *DB) RecordReveal(ctx context.Context, by Operator, action, after string, subjects ...string) error {
	rows, err := db.Read.Query(ctx, revealedSQL, subjects, action, by.CallerID) // db.Hot cannot read the table
	if err != nil {
		return err
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	var batch pgx.Batch
	for _, subject := range subjects {
		if !slices.Contains(recorded, subject) {
			by.QueueAudit(&batch, action, subject, "", after)
			recorded = append(recorded, subject)
		}
	}
	return db.Hot.SendBatch(ctx, &batch).Close()
}

// AuditEntry is a manual change of a row. Before and After are the row as JSON, or "" if there was no row before or after
// the change. If both are equal, the entry is not stored.
type AuditEntry struct{ Action, Subject, Before, After string }

// Audited commits a manual change together with its audit entry. If change returns an error, nothing is committed.
func (db *DB) Audited(ctx context.Context, by Operator, change func(tx pgx.Tx) (AuditEntry, error)) error {
	return runAudited(ctx, db.Hot, by, change)
}

// AuditedAsAdmin is Audited with the role that may change callers, templates and other settings.
func (db *DB) AuditedAsAdmin(ctx context.Context, by Operator, change func(tx pgx.Tx) (AuditEntry, error)) error {
	return runAudited(ctx, db.admin, by, change)
}

func runAudited(ctx context.Context, pool *pgxpool.Pool, by Operator, change func(tx pgx.Tx) (AuditEntry, error)) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		entry, err := change(tx)
		if err != nil || entry.Before == entry.After {
			return err
		}
		var batch pgx.Batch
		by.QueueAudit(&batch, entry.Action, entry.Subject, entry.Before, entry.After)
		return tx.SendBatch(ctx, &batch).Close()
	})
}
