package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// bodyColumns are the columns of tasks t that complete a Detail.
const bodyColumns = `t.phone_number, t.content, coalesce(t.source, ''), coalesce(t.callback_url, ''), t.metadata, t.send_at, t.created_at`

// Detail is a task with its body.
type Detail struct {
	task.Task
	Phone       string
	Content     string
	Source      string
	CallbackURL string
	Metadata    json.RawMessage // a JSON object or nil
	SendAt      time.Time
	CreatedAt   time.Time
	Archived    bool // final, old, and out of the main tables
}

const detailSQL = `
select ` + bodyColumns + `, ` + liveColumns + `, now() from tasks t join task_live l on l.id = t.id where t.id = $1
union all
select ` + bodyColumns + `, ` + doneColumns + `, now() from tasks t join task_done d on d.id = t.id where t.id = $1`

// Task finds a task by its id, live, final or archived; task.CodeNotFound when
// there is none.
func (db *DB) Task(ctx context.Context, id task.ID) (Detail, error) {
	rows, err := db.hot.Query(ctx, detailSQL, id)
	if err != nil {
		return Detail{}, failed("task", err)
	}
	found, err := scanDetails(rows)
	if err == nil && len(found) == 0 {
		found, err = db.archived(ctx, id)
	}
	switch {
	case err != nil:
		return Detail{}, failed("task", err)
	case len(found) == 0:
		return Detail{}, errNotFound("task")
	default:
		return found[0], nil
	}
}

// scanDetails reads rows of bodyColumns, liveColumns or doneColumns, and now().
func scanDetails(rows pgx.Rows) ([]Detail, error) { return pgx.CollectRows(rows, scanDetail) }

func scanDetail(row pgx.CollectableRow) (d Detail, err error) {
	var sendAt *time.Time
	body := []any{&d.Phone, &d.Content, &d.Source, &d.CallbackURL, &d.Metadata, &sendAt, &d.CreatedAt}
	scan := newTaskScan(&d.Task)
	err = row.Scan(append(body, scan.targets()...)...)
	scan.settle()
	d.SendAt = orZero(sendAt)
	return d, err
}

// TaskByKey finds the task that a submission's key stands for;
// task.CodeNotFound when no such call was committed.
func (db *DB) TaskByKey(ctx context.Context, key task.Hash) (Detail, error) {
	var id task.ID
	err := db.hot.QueryRow(ctx, `select id from submission_keys where key = $1`, key).Scan(&id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Detail{}, errNotFound("submission with this key")
	case err != nil:
		return Detail{}, failed("task by key", err)
	}
	return db.Task(ctx, id)
}

// Cancel withdraws a task that no sender has. by is nil when the submitter
// cancels its own task, else the operator who does it by hand.
func (db *DB) Cancel(ctx context.Context, id task.ID, by *Operator) (task.Task, error) {
	t, err := db.decideAnywhere(ctx, id, task.Task.Cancel, func(batch *pgx.Batch, before, after task.Task) {
		log := verdictLog{id: id, verdict: task.CancelledByHand, message: after.Result}
		if by != nil {
			log.message = cmp.Or(by.Reason, after.Result)
			by.queueAction(batch, "task.cancel", id.String(), taskJSON(before), taskJSON(after))
		}
		queueVerdicts(batch, []verdictLog{log})
	})
	return t, failed("cancel", err)
}

// RetryFailed gives a failed task a new life.
func (db *DB) RetryFailed(ctx context.Context, id task.ID, by Operator) (task.Task, error) {
	t, err := db.decideAnywhere(ctx, id, task.Task.Retry, func(batch *pgx.Batch, before, after task.Task) {
		queueVerdicts(batch, []verdictLog{{id: id, claimID: before.ClaimID, verdict: task.RetriedByHand, message: by.Reason}})
		by.queueAction(batch, "task.retry", id.String(), taskJSON(before), taskJSON(after))
	})
	return t, failed("retry", err)
}

// Resolve settles a held task; the operator's reason becomes its result.
func (db *DB) Resolve(ctx context.Context, id task.ID, how task.Resolution, by Operator) (task.Task, error) {
	decision := func(t task.Task, now time.Time) (task.Task, error) { return t.Resolve(how, by.Reason, now) }
	t, err := db.decideAnywhere(ctx, id, decision, func(batch *pgx.Batch, before, after task.Task) {
		queueVerdicts(batch, []verdictLog{{id: id, claimID: before.ClaimID, verdict: task.ResolvedByHand, message: by.Reason}})
		by.queueAction(batch, "task.resolve", id.String(), taskJSON(before), taskJSON(after))
	})
	return t, failed("resolve", err)
}

// taskJSON is a task in an audit entry.
func taskJSON(t task.Task) string {
	return mustJSON(map[string]any{
		"state": t.State.String(), "reason": t.Reason.String(), "retry_count": t.RetryCount, "result": t.Result,
	})
}
