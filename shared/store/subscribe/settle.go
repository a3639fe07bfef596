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

// TaskHooks keep the rows of subscribe messages equal to the tasks that send them.
func TaskHooks() tasks.Hooks { return tasks.Hooks{Changed: queueSubscriptions, MayRevive: mayRevive} }

// settleLogsSQL takes over into the rows what became of their tasks. A message
// that is sent stays so, whichever of its sends it was: a late success may be that
// of an earlier one.
const settleLogsSQL = `
update subscribe_message_logs g set send_status = t.send_status,
    retry_count = case when g.task_id = t.task_id then least(g.retries_before, 2147450879) + t.retry_count else g.retry_count end,
    doubtful = g.doubtful or t.doubtful, error_code = nullif(t.error_code, ''), error_message = nullif(t.error_message, ''),
    send_time = coalesce(t.sent_at, now()), updated_at = now()
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::boolean[], $5::text[], $6::text[], $7::timestamptz[])
    as t (task_id, send_status, retry_count, doubtful, error_code, error_message, sent_at)
join subscribe_message_sends s on s.task_id = t.task_id
where g.id = s.log_id and g.send_status <> 1 and (g.task_id = t.task_id or t.send_status = 1)`

// queueSubscriptions adds what the changes of tasks mean for the rows of their
// subscribe messages.
func queueSubscriptions(batch *pgx.Batch, changes []tasks.Change) {
	var changed []task.Task
	var doubtful []bool // a doubt is raised by the end of a claim alone
	for _, c := range changes {
		if task.IsSubscription(c.After.Queue) && c.Before != c.After {
			changed, doubtful = append(changed, c.After), append(doubtful, c.Before.State == task.Processing && c.After.Doubtful())
		}
	}
	if len(changed) == 0 {
		return
	}
	failed := func(t task.Task) bool { return t.SendStatus() == task.SubscribeFailed }
	batch.Queue(settleLogsSQL, store.Column(changed, func(t task.Task) task.ID { return t.ID }), store.Column(changed, func(t task.Task) int16 { return int16(t.SendStatus()) }), store.Column(changed, func(t task.Task) int16 { return t.RetryCount }),
		doubtful,
		store.Column(changed, func(t task.Task) string {
			if failed(t) && (t.ErrorCode == "" || t.ErrorCode == t.Reason.String()) {
				return task.SendFailedCode
			}
			return t.ErrorCode
		}),
		store.Column(changed, func(t task.Task) string {
			if failed(t) {
				return cmp.Or(t.Result, task.SendFailedMessage)
			}
			return t.Result
		}), store.Column(changed, func(t task.Task) *time.Time { return store.TimeOrNull(t.SentAt) }))
}

// lockNewestSQL locks the row of a send, after its task.
const lockNewestSQL = `
select task_id, send_status from subscribe_message_logs
where id = (select log_id from subscribe_message_sends where task_id = $1) for update`

// mayRevive refuses a new life to a send of a subscribe message that has a newer
// one, or is sent: its user would get the message twice.
func mayRevive(ctx context.Context, conn *pgx.Conn, t task.Task) error {
	if !task.IsSubscription(t.Queue) {
		return nil
	}
	var newest task.ID
	var status task.SendStatus
	err := conn.QueryRow(ctx, lockNewestSQL, t.ID).Scan(&newest, &status)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // it is no message's, and sends none
		return nil
	case err != nil:
		return err
	case newest != t.ID:
		return task.Refuse(task.CodeConflict, "the message has a newer send, task "+newest.String()+"; retry that one")
	case status == task.SubscribeSent:
		return task.Refuse(task.CodeConflict, `the message was sent; resend it with "force": true to send it twice`)
	}
	return nil
}
