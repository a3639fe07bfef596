package subscribe

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// The columns that are copied to the archive.
const (
	LogColumnNames = `id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data, page_path,
    send_status, send_time, retry_count, error_code, error_message, caller_id, task_id, retries_before, doubtful, created_at, updated_at`
	SendColumnNames = `task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state, created_at`
)

// archivedLogOfSQL finds the archived row of a message and compares its data with the data of a submission.
const archivedLogOfSQL = `
select id, task_id, send_status, caller_id, template_id = $5 and receiver_openid = $6 and message_data = $7::jsonb and coalesce(page_path, '') = $8
from archived_subscribe_message_logs g ` + whereKey

// restoreLogSQL moves a row with its sends from the archive back to the main tables.
const restoreLogSQL = `select restore_subscribe_message($1)`

// errStartOver makes submitOnce start over: since it looked for the row of the message, the row got a new task, was deleted,
// or was moved to or from the archive.
var errStartOver = errors.New("the row has changed")

// submitArchived handles the submission of a message without a row in the main table. If the archived message was sent, the
// submission is skipped. If the archived message failed, it is restored to the main table. Then, or if the archive has no
// such message, the error is errStartOver.
func submitArchived(ctx context.Context, conn *pgx.Conn, s *Submission) (out Submitted, err error) {
	var owner int64
	var same bool
	err = conn.QueryRow(ctx, archivedLogOfSQL, append(s.key(), s.TemplateID, s.ReceiverOpenID, string(s.Data), s.Page)...).
		Scan(&out.ID, &out.TaskID, &out.Status, &owner, &same)
	out.State, out.Archived = taskState(task.Task{}, false, out.Status), true
	switch {
	case errors.Is(err, pgx.ErrNoRows) && s.Refused != nil:
		return out, s.Refused
	case errors.Is(err, pgx.ErrNoRows):
		return out, errStartOver
	case err != nil || out.TaskID == s.TaskID: // an earlier try of this call was committed
		return out, err
	case s.mustHide(owner):
		return Submitted{}, ErrOthersMessage()
	case out.Status == task.SubscribeSent:
		out.Skipped, out.DataDiffers = true, !same && s.mayCompare(owner)
		return out, nil
	case s.Refused != nil:
		return out, s.Refused
	}
	if _, err := conn.Exec(ctx, restoreLogSQL, out.ID); err != nil {
		return out, err
	}
	return out, errStartOver
}
