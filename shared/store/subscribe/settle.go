package subscribe

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// TaskHooks returns the hooks that copy changes of tasks to the rows of subscribe messages, and that refuse retries by which
// a user could get a message twice.
func TaskHooks() tasks.Hooks { return tasks.Hooks{Changed: queueSettleLogs, MayRevive: mayRevive} }

// settleLogs copies the outcome of tasks to the rows of their messages: a success of any send, but other outcomes of the
// newest send only. A sent message stays sent. The sender chooses sent_at, but send_time is never before the first submission, in
// the future, or more than 15 minutes before the report: otherwise one sender could give so many messages the same time that they
// could not be counted.
// The least of retries_before keeps retry_count within the range of integer.
var settleLogs = store.BulkStatement[tasks.Change]{Text: `
update subscribe_message_logs g set send_status = t.send_status,
    retry_count = case when g.task_id = t.task_id then least(g.retries_before, 2147450879) + t.retry_count else g.retry_count end,
    doubtful = g.doubtful or t.doubtful, error_code = nullif(t.error_code, ''), error_message = nullif(t.error_message, ''),
    send_time = greatest(least(coalesce(t.sent_at, now()), now()), g.created_at, now() - interval '15 minutes'), updated_at = now()
from unnest(@arrays) as t (@columns)
join subscribe_message_sends s on s.task_id = t.task_id
where g.id = s.log_id and g.send_status <> 1 and (g.task_id = t.task_id or t.send_status = 1)`,
	Columns: func() []store.BulkColumn[tasks.Change] {
		type change = tasks.Change
		failed := func(t task.Task) bool { return t.SendStatus() == task.SubscribeFailed }
		return []store.BulkColumn[change]{
			store.Array("task_id uuid", func(c change) task.ID { return c.After.ID }),
			store.Array("send_status smallint", func(c change) int16 { return int16(c.After.SendStatus()) }),
			store.Array("retry_count smallint", func(c change) int16 { return c.After.RetryCount }),
			// true only when a claim ends
			store.Array("doubtful boolean", func(c change) bool { return c.Before.State == task.Processing && c.After.MayHaveBeenSent() }),
			store.Array("error_code text", func(c change) string {
				if failed(c.After) && (c.After.ErrorCode == "" || c.After.ErrorCode == c.After.Reason.String()) {
					return task.SendFailedCode
				}
				return c.After.ErrorCode
			}),
			store.Array("error_message text", func(c change) string {
				if failed(c.After) {
					return cmp.Or(c.After.Result, task.SendFailedMessage)
				}
				return c.After.Result
			}),
			store.Array("sent_at timestamptz", func(c change) *time.Time { return store.TimeOrNull(c.After.SentAt) }),
		}
	},
}

// queueSettleLogs adds settleLogs for the tasks that send subscribe messages. The changes may include both a late success and
// the outcome of the newest send of the same message, but a statement updates a row only once. So successes have a statement of
// their own, before the other changes: a sent message stays sent.
func queueSettleLogs(batch *pgx.Batch, changes []tasks.Change) {
	var sent, others []tasks.Change
	for _, c := range changes {
		switch {
		case !task.IsSubscribeQueue(c.After.Queue) || c.Before == c.After:
		case c.After.SendStatus() == task.SubscribeSent:
			sent = append(sent, c)
		default:
			others = append(others, c)
		}
	}
	settleLogs.Queue(batch, sent)
	settleLogs.Queue(batch, others)
}

// lockNewestSQL locks the row of the message that the task $1 sends, and returns the newest task of this row. The task $1
// must be locked before.
const lockNewestSQL = `
select task_id, send_status from subscribe_message_logs
where id = (select log_id from subscribe_message_sends where task_id = $1) for update`

// mayRevive refuses to retry an ended task if its message was sent or has a newer task: the user could get the message
// twice.
func mayRevive(ctx context.Context, conn *pgx.Conn, t task.Task) error {
	if !task.IsSubscribeQueue(t.Queue) {
		return nil
	}
	var newest task.ID
	var status task.SendStatus
	err := conn.QueryRow(ctx, lockNewestSQL, t.ID).Scan(&newest, &status)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the task has no message
		return nil
	case err != nil:
		return err
	case newest != t.ID:
		return task.Refuse(task.CodeConflict, "the message has a newer send, task "+newest.String()+"; retry that task")
	case status == task.SubscribeSent:
		return task.Refuse(task.CodeConflict, `the message was sent; resend it with "force": true to send it twice`)
	}
	return nil
}
