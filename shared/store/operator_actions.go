package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// Operator is who changes something by hand, and why.
type Operator struct {
	CallerID  int64
	Name      string
	RequestID string
	Reason    string // in the operator's own words; "" = not said
}

// maxOperatorName is the width of operator_actions.caller_name.
const maxOperatorName = 50

const logActionSQL = `
insert into operator_actions (caller_id, caller_name, request_id, action, subject, reason, before, after)
values ($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, '')::jsonb, nullif($8, '')::jsonb)`

// queueAction is the one writer of operator_actions. It goes with the change it
// tells of, in the same transaction; before and after are JSON or "".
func (o Operator) queueAction(batch *pgx.Batch, action, subject, before, after string) {
	batch.Queue(logActionSQL, o.CallerID, task.Cut(storable(o.Name), maxOperatorName), o.RequestID, action, subject,
		storable(o.Reason), before, after)
}

// taskJSON is a task in operator_actions.
func taskJSON(t task.Task) string {
	return mustJSON(map[string]any{
		"state": t.State.String(), "reason": t.Reason.String(), "retry_count": t.RetryCount, "result": t.Result,
	})
}

// deed is a change by hand as operator_actions keeps it: the row before and
// after as JSON, "" where there was or is none. A deed that changed nothing has
// both equal and is not kept.
type deed struct{ action, subject, before, after string }

// byHand commits a change together with the record of it.
func (db *DB) byHand(ctx context.Context, by Operator, change func(tx pgx.Tx) (deed, error)) error {
	return byHand(ctx, db.hot, by, change)
}

// asAdmin is byHand as the role that may change callers, templates and other
// settings, which only the function admin does.
func (db *DB) asAdmin(ctx context.Context, by Operator, change func(tx pgx.Tx) (deed, error)) error {
	return byHand(ctx, db.admin, by, change)
}

func byHand(ctx context.Context, pool *pgxpool.Pool, by Operator, change func(tx pgx.Tx) (deed, error)) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		d, err := change(tx)
		if err != nil || d.before == d.after {
			return err
		}
		var batch pgx.Batch
		by.queueAction(&batch, d.action, d.subject, d.before, d.after)
		return tx.SendBatch(ctx, &batch).Close()
	})
}

// Action is one change by hand.
type Action struct {
	ID         int64
	CallerID   int64
	CallerName string
	RequestID  string
	Action     string // what was done, as template.update
	Subject    string // to what, as template/7 or a task's id
	Reason     string
	Before     json.RawMessage // nil = there was no row
	After      json.RawMessage // nil = there is no row any more
	CreatedAt  time.Time
}

const actionsSQL = `
select id, caller_id, caller_name, request_id, action, subject, coalesce(reason, ''), before, after, created_at
from operator_actions
where ($1 = '' or subject = $1) and ($2::bigint = 0 or id < $2)
order by id desc
limit $3`

// Actions lists changes by hand, newest first: those of one subject, or all
// when it is "". after is the last id of the page before, 0 for the first page;
// more says that there is another page.
func (db *DB) Actions(ctx context.Context, subject string, after int64, limit int) (page []Action, more bool, err error) {
	page, more, err = pageOf[Action](ctx, db.read, limit, actionsSQL, subject, after)
	return page, more, failed("actions", err)
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// rowOf reads the one row that sql gives; task.CodeNotFound when there is none.
func rowOf[T any](ctx context.Context, q querier, what, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return row, errNotFound(what)
	}
	return row, err
}

// pageOf reads a page of at most limit rows (see readPage). The last parameter of sql is its limit, to
// which it adds one to learn whether there are more. It is planned for its very
// parameters, as most of them are filters that may be absent.
func pageOf[T any](ctx context.Context, q querier, limit int, sql string, args ...any) (page []T, more bool, err error) {
	rows, err := q.Query(ctx, sql, slices.Concat([]any{unprepared}, args, []any{limit + 1})...)
	if err != nil {
		return nil, false, err
	}
	return collectPage(ctx, rows, limit, pgx.RowToStructByPos[T])
}
