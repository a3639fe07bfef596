package admin

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// longestPause bounds a pause that ends by itself, as send_at is bounded.
const longestPause = 366 * 24 * time.Hour

func (d *desk) queues(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	queues, err := d.db.Queues(ctx)
	queues = slices.DeleteFunc(queues, func(q store.QueueState) bool { return !c.MayUseQueue(q.Queue) })
	answer := api.QueuesResponse{Queues: make([]api.QueueState, len(queues))}
	for i, q := range queues {
		answer.Queues[i] = api.QueueState{Queue: q.Queue, LiveCounts: liveCounts(q.LiveCounts)}
		if q.Pause != nil {
			pause := pauseResponse(*q.Pause)
			answer.Queues[i].Pause = &pause
		}
	}
	return answer, err
}

// pauseRequest is api.PauseRequest with its rules.
type pauseRequest api.PauseRequest

// Validate names every field whose value is not acceptable.
func (r *pauseRequest) Validate() []task.Field {
	var bad rules
	bad.Text("reason", r.Reason, maxReason)
	if r.Until != nil {
		now := time.Now()
		bad.When(!r.Until.After(now), "until", "must be in the future; leave it out to pause until somebody resumes the queue")
		bad.When(r.Until.After(now.Add(longestPause)), "until", "must be at most a year ahead; leave it out to pause until somebody resumes the queue")
	}
	return bad.Rules
}

func (d *desk) pauseQueue(ctx context.Context, c *fn.Call, req pauseRequest) (any, error) {
	queue, err := pathQueue(c)
	if err != nil {
		return nil, err
	}
	p := store.Pause{Queue: queue, Reason: req.Reason}
	replace(&p.Until, req.Until)
	p, err = d.db.PauseQueue(ctx, p, c.Operator(req.Reason))
	if err != nil {
		return nil, err
	}
	d.due(p.Until)
	return pauseResponse(p), nil
}

// resumeRequest is api.ResumeRequest with its rules.
type resumeRequest api.ResumeRequest

// Validate names every field whose value is not acceptable.
func (r *resumeRequest) Validate() []task.Field {
	var bad rules
	bad.Text("reason", r.Reason, maxReason)
	return bad.Rules
}

func (d *desk) resumeQueue(ctx context.Context, c *fn.Call, req resumeRequest) (any, error) {
	queue, err := pathQueue(c)
	if err != nil {
		return nil, err
	}
	p, err := d.db.ResumeQueue(ctx, queue, c.Operator(req.Reason))
	if err != nil {
		return nil, err
	}
	d.ready(queue, p.Pending)
	d.due(time.Now()) // sweep removes what is left of the pause
	return api.ResumeQueueResponse{Queue: queue, PendingTasks: p.Pending}, nil
}

func errQueue(queue string) error {
	return task.Refuse(task.CodeForbidden, "this admin is not one of queue "+queue)
}

// pathQueue reads {queue}. A queue need not have tasks to be paused.
func pathQueue(c *fn.Call) (string, error) {
	queue := c.PathValue("queue")
	if !task.ValidQueue(queue) {
		return "", task.Refuse(task.CodeNotFound, "no such queue: a name "+task.QueueRule)
	}
	if !c.MayUseQueue(queue) {
		return "", errQueue(queue)
	}
	return queue, nil
}

func pauseResponse(p store.Pause) api.QueuePause {
	return api.QueuePause{
		Queue: p.Queue, Until: fn.Instant(p.Until), Reason: p.Reason, PausedBy: p.PausedBy, ByHand: p.ByHand, CreatedAt: p.CreatedAt.UTC(),
	}
}
