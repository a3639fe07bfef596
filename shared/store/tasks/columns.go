package tasks

import (
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Statements that read or write tasks use these lists of columns. A column is read into the field with
// the same name (store.RowByName). A new field of task.Attempt that live tasks have too needs a column in AttemptNames
// and a line in changedOutcome.

const (
	// task_live, task_done and archived_tasks have these columns. Live tasks have no sent_at.
	AttemptNames = `result, error_code`
	outcomeNames = AttemptNames + `, retry_count, ended, claim_id, app_id`

	// DoneNames are the columns of task_done that archived_tasks keeps, without id.
	DoneNames = outcomeNames + `, status, reason, reported_at, sent_at, claimed_by`

	// BodyNames are the columns of tasks. archived_tasks has them too.
	BodyNames      = submittedNames + `, seq, created_at`
	submittedNames = liveBodyNames + `, phone_number, content, source, send_at, callback_url, metadata`
	liveBodyNames  = `id, caller_id, queue, priority, max_retries, on_unknown, expires_at` // columns of tasks that task_live has, too
)

// liveColumns select the fields of a task.Task from task_live l. doneColumns select them from task_done d and the body
// t. Both have the same names in the same order.
const (
	liveColumns = outcomeNames + `, l.id, l.queue, l.priority, l.max_retries, l.on_unknown, l.expires_at, l.caller_id, l.callback,
    null::timestamptz as not_before, l.state, 0 as reason, l.due_at, null::timestamptz as sent_at, null::timestamptz as finished_at,
    l.claimed_by, l.marks_sending, l.sending_at`
	doneColumns = outcomeNames + `, d.id, t.queue, t.priority, t.max_retries, t.on_unknown, t.expires_at, t.caller_id, t.callback_url is not null as callback,
    t.send_at as not_before, d.status + 2 as state, d.reason, null::timestamptz as due_at, d.sent_at, d.reported_at as finished_at,
    d.claimed_by, false as marks_sending, null::timestamptz as sending_at`
)

// bodyColumns select from the body t the fields of a Detail that its task.Task does not have. archivedColumns select
// all fields of a Detail from archived_tasks, which stands for both t and d.
const (
	detailOnly      = `t.phone_number as phone, t.content, t.source, t.callback_url, t.metadata, t.send_at, t.created_at`
	bodyColumns     = detailOnly + `, false as archived`
	archivedColumns = detailOnly + `, true as archived, ` + doneColumns
)

// taskRow is a row of liveColumns or doneColumns, with now() of the transaction that locked or read it.
type taskRow struct {
	task.Task
	Now time.Time
}

// changedOutcome returns the id and the columns of outcomeNames that updateLive and insertDone both write.
func changedOutcome() []store.BulkColumn[task.Task] {
	return []store.BulkColumn[task.Task]{
		store.Array("id uuid", taskID),
		store.Array("retry_count smallint", func(t task.Task) int16 { return t.RetryCount }),
		store.Array("ended smallint", func(t task.Task) int16 { return int16(t.Ended) }),
		store.Array("result text", func(t task.Task) *string { return store.OrNull(t.Result) }),
		store.Array("error_code text", func(t task.Task) *string { return store.OrNull(t.ErrorCode) }),
	}
}

// changedLive returns the columns of updateLive.
func changedLive() []store.BulkColumn[task.Task] {
	return append(changedOutcome(),
		store.Array("state smallint", func(t task.Task) int16 { return int16(t.State) }),
		store.Array("due_at timestamptz", func(t task.Task) *time.Time { return store.TimeOrNull(t.DueAt) }))
}

// changedDone returns the columns of insertDone.
func changedDone() []store.BulkColumn[task.Task] {
	return append(changedOutcome(),
		store.Array("status smallint", func(t task.Task) int16 { return int16(t.State.Status()) }),
		store.Array("reason smallint", reason),
		store.Array("claim_id bigint", func(t task.Task) *int64 { return store.OrNull(t.ClaimID) }),
		store.Array("app_id text", func(t task.Task) *string { return store.OrNull(t.AppID) }),
		store.Array("claimed_by bigint", func(t task.Task) *int64 { return t.ClaimedBy }),
		store.Array("sent_at timestamptz", func(t task.Task) *time.Time { return store.TimeOrNull(t.SentAt) }),
		store.Array("subscribe boolean", isSubscribe))
}

func taskID(t task.Task) task.ID   { return t.ID }
func reason(t task.Task) int16     { return int16(t.Reason) }
func isSubscribe(t task.Task) bool { return task.IsSubscribeQueue(t.Queue) }
