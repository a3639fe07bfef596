package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// bulkTimeout is the time for a count of the tasks (CountWait until it starts, then readTimeout), and 5 s for the other statements.
const bulkTimeout = tasks.CountWait + readTimeout + 5*time.Second

// statesOfActions has, for each action, the states of the tasks that it can change.
var statesOfActions = map[tasks.BulkAction][]task.State{
	tasks.BulkCancel: {task.Scheduled, task.Pending}, tasks.BulkRetry: {task.Failed},
	tasks.BulkSucceeded: {task.Held}, tasks.BulkFailed: {task.Held}, tasks.BulkResend: {task.Held},
}

func checkBulk(bad *decode.BadFields, action string, f *api.BulkFilter) {
	states, known := statesOfActions[tasks.BulkAction(action)]
	bad.When(!known, "action", "must be cancel, retry, succeeded, failed or resend")
	state, isState := task.ParseState(f.State)
	bad.When(known && !(isState && slices.Contains(states, state)), "filter.state", "to cancel, must be scheduled or pending; to retry, must be failed; to resolve, must be held")
	_, known = task.ParseReason(f.Reason)
	bad.When(!known, "filter.reason", "must be rejected, retries_exhausted, timeout, unknown, expired or cancelled")
	bad.When(f.Reason != "" && state != task.Failed, "filter.reason", "only failed tasks have a reason")
	if f.PhoneNumber != "" {
		_, problem := task.Country("").Phone(f.PhoneNumber)
		bad.When(problem != "", "filter.phone_number", problem)
	}
	bad.AtMost("filter.source", f.Source, 50)
	bad.Queue("filter.queue", f.Queue)
	bad.When(f.From != nil && f.To != nil && !f.From.Before(*f.To), "filter.to", "must be later than from")
	bad.When(f.From != nil && (f.From.UTC().Year() < 1970 || f.From.UTC().Year() > 9999), "filter.from", "must be between the years 1970 and 9999")
	bad.When(f.To != nil && (f.To.UTC().Year() < 1970 || f.To.UTC().Year() > 9999), "filter.to", "must be between the years 1970 and 9999")
}

type bulkPreviewRequest api.BulkPreviewRequest

func (r *bulkPreviewRequest) Validate() []task.Field {
	var bad decode.BadFields
	checkBulk(&bad, r.Action, &r.Filter)
	return bad
}

type bulkRequest api.BulkRequest

func (r *bulkRequest) Validate() []task.Field {
	var bad decode.BadFields
	checkBulk(&bad, r.Action, &r.Filter)
	bad.When(r.Expected < 0 || r.Expected > tasks.MaxBulk, "expected", fmt.Sprintf("must be between 0 and %d: the count of the preview", tasks.MaxBulk))
	bad.Text("reason", r.Reason, maxReasonLength)
	return bad
}

// bulkFilter converts a valid filter and adds the queues of the admin. If To is missing or in the future, bulkFilter sets To to now.
func (h *handlers) bulkFilter(c *fn.Call, f api.BulkFilter) (tasks.BulkFilter, error) {
	if f.Queue != "" && !c.MayUseQueue(f.Queue) {
		return tasks.BulkFilter{}, errForbiddenQueue(f.Queue)
	}
	filter := tasks.BulkFilter{
		State: f.State, Reason: f.Reason, Phone: h.phone(f.PhoneNumber), Source: f.Source, Queue: f.Queue, Queues: c.Caller.Queues,
		CallerID: (*int64)(f.CallerID), From: f.From, To: time.Now().UTC(),
	}
	if f.To != nil && f.To.Before(filter.To) {
		filter.To = f.To.UTC()
	}
	return filter, nil
}

func (h *handlers) previewBulk(ctx context.Context, c *fn.Call, req bulkPreviewRequest) (any, error) {
	filter, err := h.bulkFilter(c, req.Filter)
	if err != nil {
		return nil, err
	}
	matched, err := h.env.Tasks.CountMatches(ctx, filter)
	return api.BulkPreviewResponse{Action: req.Action, Filter: filterResponse(filter), Matched: matched}, err
}

// startBulk starts a bulk change, unless more tasks match than the operator expects.
func (h *handlers) startBulk(ctx context.Context, c *fn.Call, req bulkRequest) (any, error) {
	filter, err := h.bulkFilter(c, req.Filter)
	if err != nil {
		return nil, err
	}
	matched, err := h.env.Tasks.CountMatches(ctx, filter)
	if err != nil {
		return nil, err
	}
	if matched > req.Expected {
		return nil, task.Refuse(task.CodeConflict, fmt.Sprintf("%d tasks match now, more than the expected %d; preview the change again", matched, req.Expected))
	}
	b, err := h.env.Tasks.StartBulk(ctx, task.NewID(), tasks.BulkAction(req.Action), filter, matched, tasks.TokenProof{Salt: c.Caller.Salt, Proof: c.Caller.Proof}, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(time.Now())
	return bulkResponse(b), nil
}

type bulkListRequest api.BulkListRequest

func (r *bulkListRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.PageByID(r.Limit, r.After)
	return bad
}

// bulks lists the bulk changes. A caller with queues may read only its own.
func (h *handlers) bulks(ctx context.Context, c *fn.Call, req bulkListRequest) (any, error) {
	after, _ := task.ParseID(req.After) // Validate has checked it
	rows, more, err := h.env.Tasks.Bulks(ctx, c.ReadScope(), after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, bulkResponse, func(b tasks.Bulk) task.ID { return b.ID }), err
}

func (h *handlers) bulk(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	b, err := h.readableBulk(ctx, c)
	return bulkResponse(b), err
}

// readableBulk returns the bulk change of the path. The error is also not_found if the caller may not read the bulk change.
func (h *handlers) readableBulk(ctx context.Context, c *fn.Call) (tasks.Bulk, error) {
	id, err := task.ParseID(c.PathValue("id"))
	if err != nil {
		return tasks.Bulk{}, task.Refuse(task.CodeNotFound, "no such bulk change")
	}
	b, err := h.env.Tasks.BulkByID(ctx, id)
	if err == nil && !c.ReadsAll() && b.CallerID != c.Caller.ID {
		err = task.Refuse(task.CodeNotFound, "no such bulk change")
	}
	return b, err
}

func (h *handlers) stopBulk(ctx context.Context, c *fn.Call, req optionalReason) (any, error) {
	b, err := h.readableBulk(ctx, c)
	if err == nil {
		b, err = h.env.Tasks.StopBulk(ctx, b.ID, c.AsOperator(req.Reason))
	}
	return bulkResponse(b), err
}

func filterResponse(f tasks.BulkFilter) api.BulkFilter {
	return api.BulkFilter{
		State: f.State, Reason: f.Reason, PhoneNumber: f.Phone, Source: f.Source, Queue: f.Queue, CallerID: (*api.ID)(f.CallerID), From: fn.UTC(f.From), To: fn.Instant(f.To),
	}
}

func bulkResponse(b tasks.Bulk) api.BulkResponse {
	response := api.BulkResponse{
		ID: b.ID.String(), State: "running", Action: string(b.Action), Filter: filterResponse(b.Filter), Reason: b.Reason, CallerID: api.ID(b.CallerID), CallerName: b.CallerName,
		Matched: b.Matched, Looked: b.Looked, Changed: b.Changed, Refused: b.Refused, CreatedAt: b.CreatedAt.UTC(), FinishedAt: fn.UTC(b.FinishedAt),
		StoppedBy: decode.ValueOr(b.StoppedBy, ""), StopReason: decode.ValueOr(b.StopReason, ""), LastError: decode.ValueOr(b.LastError, ""),
	}
	switch {
	case b.StoppedBy != nil || b.StopReason != nil:
		response.State = "stopped"
	case b.FinishedAt != nil:
		response.State = "finished"
	}
	return response
}
