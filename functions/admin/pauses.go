package admin

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxPause      = decode.MaxTaskDelay
	queuesPerPage = 1000 // the default and the maximum
)

type queuesRequest api.QueuesRequest

func (r *queuesRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Between("limit", r.Limit, 1, queuesPerPage)
	bad.AfterIsValid(r.After == "" || task.ValidQueue(r.After))
	return bad
}

func (h *handlers) queues(ctx context.Context, c *fn.Call, req queuesRequest) (any, error) {
	queues, more, err := h.env.Tasks.Queues(ctx, c.Caller.Queues, req.After, decode.ValueOr(req.Limit, queuesPerPage))
	page := fn.PageOf(queues, more, queueState, func(q tasks.QueueState) string { return q.Queue })
	return api.QueuesResponse{Queues: page.Items, NextAfter: page.NextAfter}, err
}

func queueState(q tasks.QueueState) api.QueueState {
	response := api.QueueState{Queue: q.Queue, LiveCounts: liveCounts(q.LiveCounts)}
	if q.Pause != nil {
		pause := pauseResponse(*q.Pause)
		response.Pause = &pause
	}
	return response
}

type pauseRequest api.PauseRequest

func (r *pauseRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("reason", r.Reason, maxReasonLength)
	if r.Until != nil {
		now := time.Now()
		bad.When(!r.Until.After(now), "until", "must be in the future; leave it out to pause until the queue is resumed")
		bad.When(r.Until.After(now.Add(maxPause)), "until", "must be at most a year ahead; leave it out to pause until the queue is resumed")
	}
	return bad
}

func (h *handlers) pauseQueue(ctx context.Context, c *fn.Call, req pauseRequest) (any, error) {
	queue, err := pathQueue(c)
	if err != nil {
		return nil, err
	}
	p := tasks.Pause{Queue: queue, Reason: req.Reason}
	setIfGiven(&p.Until, req.Until)
	p, err = h.env.Tasks.PauseQueue(ctx, p, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(p.Until)
	return pauseResponse(p), nil
}

// requiredReason is the request of a change that has only a reason: api.ResumeRequest and api.DismissRequest.
type requiredReason api.ResumeRequest

func (r *requiredReason) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("reason", r.Reason, maxReasonLength)
	return bad
}

func (h *handlers) resumeQueue(ctx context.Context, c *fn.Call, req requiredReason) (any, error) {
	queue, err := pathQueue(c)
	if err != nil {
		return nil, err
	}
	p, err := h.env.Tasks.ResumeQueue(ctx, queue, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.env.WakeClaims(queue, p.PendingTasks)
	h.env.WakeSweepAt(time.Now()) // sweep removes the row of the pause
	return api.ResumeQueueResponse{Queue: queue, PendingTasks: p.PendingTasks}, nil
}

func errForbiddenQueue(queue string) error {
	return task.Refuse(task.CodeForbidden, "this caller may not use queue "+queue)
}

// pathQueue returns the {queue} of the path. The queue need not have tasks.
func pathQueue(c *fn.Call) (string, error) {
	queue := c.PathValue("queue")
	if !task.ValidQueue(queue) {
		return "", task.Refuse(task.CodeNotFound, "no such queue: a name "+task.QueueRule)
	}
	if !c.MayUseQueue(queue) {
		return "", errForbiddenQueue(queue)
	}
	return queue, nil
}

func pauseResponse(p tasks.Pause) api.QueuePause {
	return api.QueuePause{
		Queue: p.Queue, Until: fn.Instant(p.Until), Reason: p.Reason, PausedBy: p.PausedBy, ByHand: p.Manual, CreatedAt: p.CreatedAt.UTC(),
	}
}
