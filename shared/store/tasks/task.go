package tasks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const detailSQL = `
select ` + bodyColumns + `, ` + liveColumns + ` from tasks t join task_live l on l.id = t.id where t.id = $1
union all
select ` + bodyColumns + `, ` + doneColumns + ` from tasks t join task_done d on d.id = t.id where t.id = $1`

// ByID finds a live, final or archived task. If there is none, the error is task.CodeNotFound.
func (st *Store) ByID(ctx context.Context, id task.ID) (Detail, error) {
	tasks, err := store.QueryRows(ctx, st.db.Hot, store.RowByName[Detail](), detailSQL, id)
	if err == nil && len(tasks) == 0 {
		tasks, err = st.archived(ctx, id)
	}
	switch {
	case err != nil:
		return Detail{}, store.Wrap("task", err)
	case len(tasks) == 0:
		return Detail{}, store.NotFound("task")
	default:
		return tasks[0], nil
	}
}

// RecordReveal adds an audit entry: an operator was shown the phone number and content of a task. It adds at most one
// entry an hour for the same task and operator.
func (st *Store) RecordReveal(ctx context.Context, id task.ID, by store.Operator) error {
	return store.Wrap("record reveal", st.db.RecordReveal(ctx, by, "task.reveal", `{"revealed":["phone_number","content"]}`, id.String()))
}

// ByKey finds the task that was submitted with a key. If there is none, the error is task.CodeNotFound.
func (st *Store) ByKey(ctx context.Context, key task.Hash) (Detail, error) {
	var id task.ID
	err := st.db.Hot.QueryRow(ctx, `select id from submission_keys where key = $1`, key).Scan(&id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Detail{}, store.NotFound("submission with this key")
	case err != nil:
		return Detail{}, store.Wrap("task by key", err)
	}
	return st.ByID(ctx, id)
}

// Cancel ends a scheduled or pending task. by is nil if the submitter cancels its own task.
func (st *Store) Cancel(ctx context.Context, id task.ID, by *store.Operator) (task.Task, error) {
	t, err := st.decideAnywhere(ctx, id, task.Task.Cancel, func(batch *pgx.Batch, before, after task.Task) {
		log := VerdictLog{ID: id, Verdict: task.CancelledManually, Message: after.Result}
		if by != nil {
			log.Message = cmp.Or(by.Reason, after.Result)
			by.QueueAudit(batch, "task.cancel", id.String(), taskJSON(before), taskJSON(after))
		}
		QueueVerdicts(batch, []VerdictLog{log})
	})
	return t, store.Wrap("cancel", err)
}

// RetryFailed makes a failed task pending again, with all its retries. If its send time is still to come, the task
// becomes scheduled.
func (st *Store) RetryFailed(ctx context.Context, id task.ID, by store.Operator) (task.Task, error) {
	t, err := st.decideAnywhere(ctx, id, task.Task.Retry, func(batch *pgx.Batch, before, after task.Task) {
		QueueVerdicts(batch, []VerdictLog{{ID: id, claimID: before.ClaimID, Verdict: task.RetriedManually, Message: by.Reason}})
		by.QueueAudit(batch, "task.retry", id.String(), taskJSON(before), taskJSON(after))
	})
	return t, store.Wrap("retry", err)
}

// Resolve ends a held task, or makes it pending again, as how says. The operator's reason becomes the task's result.
func (st *Store) Resolve(ctx context.Context, id task.ID, how task.Resolution, by store.Operator) (task.Task, error) {
	resolve := func(t task.Task, now time.Time) (task.Task, error) { return t.Resolve(how, by.Reason, now) }
	t, err := st.decideAnywhere(ctx, id, resolve, func(batch *pgx.Batch, before, after task.Task) {
		QueueVerdicts(batch, []VerdictLog{{ID: id, claimID: before.ClaimID, Verdict: task.ResolvedManually, Message: by.Reason}})
		by.QueueAudit(batch, "task.resolve", id.String(), taskJSON(before), taskJSON(after))
	})
	return t, store.Wrap("resolve", err)
}

// taskJSON returns what an audit entry shows of a task.
func taskJSON(t task.Task) string {
	return store.MustJSON(map[string]any{
		"state": t.State.String(), "reason": t.Reason.String(), "retry_count": t.RetryCount, "result": t.Result,
	})
}
