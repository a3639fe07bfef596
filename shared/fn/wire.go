package fn

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Instant is a time of the wire, in UTC; nil when there is none.
func Instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// UTC is an optional time of the wire, in UTC.
func UTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return Instant(*t)
}

// TaskResponse is a task as every function shows it.
func TaskResponse(t tasks.Detail) api.TaskResponse {
	segments, encoding := task.Segments(t.Content)
	return api.TaskResponse{
		TaskID: t.ID.String(), PhoneNumber: t.Phone, Content: t.Content,
		Status: t.State.Status(), State: t.State.String(), Reason: t.Reason.String(), Result: t.Result, ErrorCode: t.ErrorCode,
		Source: t.Source, Queue: t.Queue, Priority: int(t.Priority), RetryCount: int(t.RetryCount), MaxRetries: int(t.MaxRetries),
		OnUnknown: t.OnUnknown.String(), Segments: segments, Encoding: string(encoding), CallbackURL: t.CallbackURL,
		Metadata: t.Metadata, CreatedAt: t.CreatedAt.UTC(),
		SendAt: Instant(t.SendAt), ExpiresAt: Instant(t.ExpiresAt), SentAt: Instant(t.SentAt), ReportedAt: Instant(t.FinishedAt),
		Archived: t.Archived,
	}
}

// TaskID reads {task_id} of the path; what is no id names no task.
func (c *Call) TaskID() (task.ID, error) { return c.pathID("task_id", "task") }

// ID reads {id} of the path as a UUID; what is none names nothing. what is the
// kind of thing that it should name.
func (c *Call) ID(what string) (task.ID, error) { return c.pathID("id", what) }

func (c *Call) pathID(name, what string) (task.ID, error) {
	id, err := task.ParseID(c.PathValue(name))
	if err != nil {
		return id, task.Refuse(task.CodeNotFound, "no such "+what)
	}
	return id, nil
}

// RowID reads {id} of the path in the one form in which the ids of rows are written;
// any other text names nothing. what is the kind of thing that it should name.
func RowID[I int32 | int64](c *Call, what string) (I, error) {
	text := c.PathValue("id")
	n, err := strconv.ParseInt(text, 10, 64)
	if id := I(n); err == nil && n > 0 && int64(id) == n && strconv.FormatInt(n, 10) == text {
		return id, nil
	}
	return 0, task.Refuse(task.CodeNotFound, "no such "+what)
}

// Operator is the caller as one who changes something by hand; reason is why.
func (c *Call) Operator(reason string) store.Operator {
	return store.Operator{CallerID: c.Caller.ID, Name: c.Caller.Name, RequestID: c.RequestID, Reason: reason}
}

// PageOf makes a page of stored rows; id names a row for next_after.
func PageOf[R, W, I any](rows []R, more bool, wire func(R) W, id func(R) I) api.Page[W] {
	page := api.Page[W]{Items: make([]W, len(rows))}
	for i, row := range rows {
		page.Items[i] = wire(row)
	}
	if more {
		page.NextAfter = fmt.Sprint(id(rows[len(rows)-1]))
	}
	return page
}
