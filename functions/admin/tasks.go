package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

const maxEventsPerLog = 200 // events that a page of a task's timeline reads from each log

type tasksRequest api.TasksRequest

func (r *tasksRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.PageByID(r.Limit, r.After)
	state, known := task.ParseState(r.State)
	bad.When(r.State != "" && !known, "state", "must be scheduled, pending, processing, held, succeeded or failed")
	_, known = task.ParseReason(r.Reason)
	bad.When(!known, "reason", "must be rejected, retries_exhausted, timeout, unknown, expired or cancelled")
	bad.When(known && r.Reason != "" && r.State != "" && state != task.Failed, "reason", "only failed tasks have a reason; leave out state")
	bad.PhoneParameter(r.PhoneNumber)
	bad.AtMost("source", r.Source, 50)
	bad.Queue("queue", r.Queue)
	bad.When(r.From != nil && r.To != nil && !r.From.Before(*r.To), "to", "must be later than from")
	return bad
}

// filter converts a valid request, without its phone number.
func (r *tasksRequest) filter() tasks.Filter {
	f := tasks.Filter{Source: r.Source, Queue: r.Queue, CallerID: (*int64)(r.CallerID), Limit: decode.PageLimit(r.Limit)}
	if state, known := task.ParseState(r.State); known {
		f.State = &state
	}
	f.Reason, _ = task.ParseReason(r.Reason)
	f.After, _ = task.ParseID(r.After)
	setIfGiven(&f.From, r.From)
	setIfGiven(&f.To, r.To)
	return f
}

func (h *handlers) tasks(ctx context.Context, c *fn.Call, req tasksRequest) (any, error) {
	if req.Queue != "" && !c.MayUseQueue(req.Queue) {
		return nil, errForbiddenQueue(req.Queue)
	}
	filter := req.filter()
	filter.Queues = c.Caller.Queues
	if !isAdminOrViewer(c) {
		if filter.CallerID != nil && *filter.CallerID != c.Caller.ID {
			return nil, task.Refuse(task.CodeForbidden, "caller_id: a submitter may list only its own tasks")
		}
		filter.CallerID = &c.Caller.ID
	}
	filter.Phone = h.phone(req.PhoneNumber)
	found, err := h.env.Tasks.List(ctx, filter)
	page := api.Page[api.AdminTask]{Items: make([]api.AdminTask, len(found.Tasks))}
	for i, t := range found.Tasks {
		page.Items[i] = adminTask(c, t)
	}
	if !found.Next.IsZero() {
		page.NextAfter = found.Next.String()
	}
	return page, err
}

type taskRequest api.AdminTaskRequest

func (r *taskRequest) Validate() []task.Field {
	var bad decode.BadFields
	_, ok := parseTimelineCursor(r.After)
	bad.AfterIsValid(ok)
	return bad
}

func timelineCursor(c tasks.TimelineCursor) string {
	if c == (tasks.TimelineCursor{}) {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", c[0], c[1], c[2])
}

func parseTimelineCursor(text string) (cursor tasks.TimelineCursor, ok bool) {
	if text == "" {
		return cursor, true
	}
	parts := strings.Split(text, ".")
	if len(parts) != len(cursor) {
		return cursor, false
	}
	for i, part := range parts {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 0 {
			return cursor, false
		}
		cursor[i] = n
	}
	return cursor, true
}

func (h *handlers) task(ctx context.Context, c *fn.Call, req taskRequest) (any, error) {
	t, err := h.readableTask(ctx, c)
	if err != nil {
		return nil, err
	}
	cursor, _ := parseTimelineCursor(req.After) // Validate has checked it
	events, next, err := h.env.Tasks.Timeline(ctx, t.ID, cursor, maxEventsPerLog)
	response := api.AdminTaskResponse{Task: adminTask(c, t), Timeline: make([]api.TaskEvent, len(events)), NextAfter: timelineCursor(next)}
	for i, e := range events {
		response.Timeline[i] = taskEvent(e)
		if e.CallerName != "" && !isAdminOrViewer(c) { // a submitter does not see which operator decided
			response.Timeline[i].CallerName, response.Timeline[i].CallerID, response.Timeline[i].RequestID = "", nil, ""
		}
	}
	return response, err
}

// isAdminOrViewer reports whether the caller may read tasks of other callers: all of them or, if the caller has queues, those of its
// queues.
func isAdminOrViewer(c *fn.Call) bool { return c.HasRole(fn.Admin) || c.HasRole(fn.Viewer) }

func mayReadTask(c *fn.Call, t tasks.Detail) bool {
	return c.MayUseQueue(t.Queue) && (isAdminOrViewer(c) || t.CallerID == c.Caller.ID)
}

// readableTask returns the task of the path. The error is also not_found if the caller may not read the task.
func (h *handlers) readableTask(ctx context.Context, c *fn.Call) (tasks.Detail, error) {
	id, err := c.TaskID()
	if err != nil {
		return tasks.Detail{}, err
	}
	t, err := h.env.Tasks.ByID(ctx, id)
	if err == nil && !mayReadTask(c, t) {
		err = task.Refuse(task.CodeNotFound, "no such task")
	}
	return t, err
}

// reveal returns the full phone number and content. Before that, it writes an audit entry, unless it wrote one for the same caller and
// task within the last hour.
func (h *handlers) reveal(ctx context.Context, c *fn.Call, req optionalReason) (any, error) {
	t, err := h.readableTask(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := h.env.Tasks.RecordReveal(ctx, t.ID, c.AsOperator(req.Reason)); err != nil {
		return nil, err
	}
	return api.RevealResponse{TaskID: t.ID.String(), PhoneNumber: t.Phone, Content: t.Content}, nil
}

type optionalReason api.RepairRequest

func (r *optionalReason) Validate() []task.Field {
	var bad decode.BadFields
	bad.AtMost("reason", r.Reason, maxReasonLength)
	return bad
}

func (h *handlers) retry(ctx context.Context, c *fn.Call, req optionalReason) (any, error) {
	return h.repair(ctx, c, func(id task.ID) (task.Task, error) {
		return h.env.Tasks.RetryFailed(ctx, id, c.AsOperator(req.Reason))
	})
}

func (h *handlers) cancel(ctx context.Context, c *fn.Call, req optionalReason) (any, error) {
	by := c.AsOperator(req.Reason)
	return h.repair(ctx, c, func(id task.ID) (task.Task, error) { return h.env.Tasks.Cancel(ctx, id, &by) })
}

type resolveRequest api.ResolveRequest

func (r *resolveRequest) Validate() []task.Field {
	var bad decode.BadFields
	switch task.Resolution(r.Outcome) {
	case task.ResolveSucceeded, task.ResolveFailed, task.ResolveResend:
	default:
		bad.When(true, "outcome", "is required: succeeded, failed or resend")
	}
	bad.When(strings.TrimSpace(r.Reason) == "", "reason", "is required: it becomes the task's result")
	bad.AtMost("reason", r.Reason, maxReasonLength)
	return bad
}

func (h *handlers) resolve(ctx context.Context, c *fn.Call, req resolveRequest) (any, error) {
	return h.repair(ctx, c, func(id task.ID) (task.Task, error) {
		return h.env.Tasks.Resolve(ctx, id, task.Resolution(req.Outcome), c.AsOperator(req.Reason))
	})
}

// repair changes the task of the path. Then it wakes sweep at the time when the task is next due, and a waiting claim if the task is
// pending. Whether the caller may use the queue is checked before the change. This is enough, because a task never changes its queue.
func (h *handlers) repair(ctx context.Context, c *fn.Call, change func(task.ID) (task.Task, error)) (any, error) {
	id, err := c.TaskID()
	if err != nil {
		return nil, err
	}
	if c.LimitedToQueues() {
		switch before, err := h.env.Tasks.ByID(ctx, id); {
		case err != nil:
			return nil, err
		case !c.MayUseQueue(before.Queue):
			return nil, task.Refuse(task.CodeNotFound, "no such task")
		}
	}
	t, err := change(id)
	if err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(t.DueAt)
	if t.State == task.Pending {
		h.env.WakeClaims(t.Queue, 1)
	}
	return api.RepairResponse{
		TaskID: t.ID.String(), Status: t.State.Status(), State: t.State.String(), Reason: t.Reason.String(),
		RetryCount: int(t.RetryCount), Result: t.Result, ErrorCode: t.ErrorCode,
	}, nil
}

func adminTask(c *fn.Call, t tasks.Detail) api.AdminTask {
	if t.CallbackURL != "" && t.CallerID != c.Caller.ID {
		t.CallbackURL = c.ShownURL(t.CallbackURL)
	}
	response := api.AdminTask{
		TaskResponse: fn.TaskResponse(t), CallerID: api.ID(t.CallerID), AppID: t.AppID, ClaimID: api.ID(t.ClaimID), ClaimedBy: shownCaller(t.ClaimedBy),
	}
	if t.State == task.Processing {
		response.LeaseUntil = fn.Instant(t.DueAt)
	}
	return response
}

// shownCaller returns the id of a caller, or nil for a function of Sendonce itself.
func shownCaller(id *int64) *api.ID {
	if id == nil || *id == task.ServiceCaller {
		return nil
	}
	return (*api.ID)(id)
}

func taskEvent(e tasks.TimelineEvent) api.TaskEvent {
	return api.TaskEvent{
		At: e.At.UTC(), Event: string(e.Event), AppID: e.AppID, ClaimID: api.ID(e.ClaimID), CallerID: shownCaller(e.CallerID),
		CallerName: e.CallerName, State: e.State, Status: e.Status, StatusCode: e.StatusCode, Verdict: e.Verdict, ErrorCode: e.ErrorCode, Message: e.Message,
		RequestID: e.RequestID, SourceIP: e.SourceIP, UserAgent: e.UserAgent,
	}
}
