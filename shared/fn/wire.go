package fn

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Instant returns t in UTC, for a response; nil for the zero time.
func Instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// UTC is Instant for a time that may be nil; nil for nil.
func UTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return Instant(*t)
}

// TaskResponse returns a task as all functions write it in responses.
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

// TaskID parses {task_id} of the path. A malformed id gets the same error as an unknown id.
func (c *Call) TaskID() (task.ID, error) { return c.pathID("task_id", "task") }

// ID parses {id} of the path, a UUID. what is the kind of thing that the id identifies, for the error.
func (c *Call) ID(what string) (task.ID, error) { return c.pathID("id", what) }

func (c *Call) pathID(name, what string) (task.ID, error) {
	id, err := task.ParseID(c.PathValue(name))
	if err != nil {
		return id, task.Refuse(task.CodeNotFound, "no such "+what)
	}
	return id, nil
}

// RowID parses {id} of the path, a positive number without a sign or leading zeros. Any other
// text gets the same error as an unknown id. what is as for ID.
func RowID[I int32 | int64](c *Call, what string) (I, error) {
	text := c.PathValue("id")
	n, err := strconv.ParseInt(text, 10, 64)
	if id := I(n); err == nil && n > 0 && int64(id) == n && strconv.FormatInt(n, 10) == text {
		return id, nil
	}
	return 0, task.Refuse(task.CodeNotFound, "no such "+what)
}

// WithID returns a handler that passes the id in the path to handle. parse is RowID or (*Call).ID, and what is as for ID.
func WithID[I, Req any](parse func(*Call, string) (I, error), what string, handle func(context.Context, *Call, I, Req) (any, error)) func(context.Context, *Call, Req) (any, error) {
	return func(ctx context.Context, c *Call, req Req) (any, error) {
		id, err := parse(c, what)
		if err != nil {
			return nil, err
		}
		return handle(ctx, c, id, req)
	}
}

// AsOperator returns the caller as the operator who makes a manual change.
func (c *Call) AsOperator(reason string) store.Operator {
	return store.Operator{CallerID: c.Caller.ID, Name: c.Caller.Name, RequestID: c.RequestID, Reason: reason}
}

// PageOf converts rows to a page of a list. If there are more rows after these, next_after is the id of the last of these.
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
