package subscribe

import (
	"context"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

type recordRequest api.SubscribeRecordRequest

func (r *recordRequest) Validate() []task.Field {
	bad := decode.BadFields((*sendRequest)(&r.SubscribeRequest).Validate())
	bad.App(r.AppID)
	bad.Lease(r.LeaseSeconds)
	bad.When(r.SendAt != nil, "send_at", "must not be given: a recorded message is sent now")
	return bad
}

// record commits a message that the caller itself sends, and claims its task for the caller in the same transaction.
func (h *handlers) record(ctx context.Context, c *fn.Call, req recordRequest) (any, error) {
	s := h.submission(c, (*sendRequest)(&req.SubscribeRequest))
	s.Queue, s.AppID, s.Lease = task.RecordedQueue, req.AppID, decode.SecondsOr(req.LeaseSeconds, h.lease)
	out, err := h.submit(ctx, c, s)
	if err != nil {
		return nil, err
	}
	recorded := api.SubscribeRecordResponse{SubscribeResponse: response(out)}
	if !out.Skipped {
		h.env.WakeSweepAt(out.LeaseUntil)
		recorded.ClaimID, recorded.LeaseUntil = api.ID(out.ClaimID), fn.Instant(out.LeaseUntil)
	}
	return recorded, nil
}

type statusRequest api.SubscribeStatusRequest

func (r *statusRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.App(r.AppID)
	bad.When(r.ClaimID == 0, "claim_id", "is required: the claim_id that record returned")
	bad.When(r.SendStatus == nil && r.Outcome == "", "send_status", "is required: 1 (sent), 2 (failed) or 0 (extends the lease), unless outcome is given")
	bad.When(r.SendStatus != nil && (*r.SendStatus < 0 || *r.SendStatus > 2), "send_status", "must be 1 (sent), 2 (failed) or 0 (extends the lease)")
	bad.When(r.Outcome != "" && r.Outcome != "unknown", "outcome", "must be unknown")
	bad.When(r.Outcome != "" && r.SendStatus != nil, "outcome", "must not be given together with send_status")
	bad.AtMost("error_code", r.ErrorCode, task.MaxErrorCode)
	bad.When(r.ShouldRetry && !r.hasStatus(task.SubscribeFailed), "should_retry", "needs send_status 2")
	bad.Lease(r.LeaseSeconds)
	bad.When(r.LeaseSeconds != nil && !r.hasStatus(task.SubscribeSending), "lease_seconds", "needs send_status 0")
	return bad
}

func (r *statusRequest) hasStatus(status task.SendStatus) bool {
	return r.SendStatus != nil && *r.SendStatus == int(status)
}

func (r *statusRequest) outcome() task.Outcome {
	switch {
	case r.hasStatus(task.SubscribeSent):
		return task.SentOK
	case r.hasStatus(task.SubscribeFailed):
		return task.SentFailed
	default:
		return task.SentUnknown
	}
}

// status reports the outcome of a recorded message, or extends the lease of its claim. The request uses the field names
// of the original subscribe message service.
func (h *handlers) status(ctx context.Context, c *fn.Call, req statusRequest) (any, error) {
	l, err := h.readableMessage(ctx, c)
	if err != nil {
		return nil, err
	}
	if l.TaskID, err = h.taskOfClaim(ctx, l, int64(req.ClaimID)); err != nil {
		return nil, err
	}
	if req.hasStatus(task.SubscribeSending) {
		return h.extend(ctx, c, l, &req)
	}
	outs, errs := h.env.Tasks.Report([]*tasks.Report{{Queues: c.Caller.Queues, Request: c.Body, Report: task.Report{
		TaskID: l.TaskID, AppID: req.AppID, CallerID: c.Caller.ID, ClaimID: int64(req.ClaimID), Outcome: req.outcome(), ShouldRetry: req.ShouldRetry,
		Message: req.ErrorMessage, ErrorCode: req.ErrorCode,
	}}})
	out := outs[0]
	switch {
	case errs[0] != nil:
		return nil, errs[0]
	case !out.Found:
		return nil, noMessage()
	case out.Verdict == task.Stale:
		return nil, task.Refuse(task.CodeStaleClaim, "claim_id is not the message's newest claim, or another caller or app_id made the claim, or it has already ended with another outcome; nothing was changed")
	case out.Verdict == task.Applied:
		h.env.WakeSweepAt(out.Task.DueAt)
	}
	if l, err = h.env.Subscribe.LogByID(ctx, l.ID); err != nil { // again, because the report changed the row
		return nil, err
	}
	return api.SubscribeStatusResponse{
		ID: api.ID(l.ID), TaskID: out.Task.ID.String(), SendStatus: int(l.Status), State: out.Task.State.String(), Reason: out.Task.Reason.String(),
		RetryCount: l.RetryCount, Already: out.Verdict == task.Already,
	}, nil
}

// taskOfClaim returns, among the recorded tasks of a message, the one whose newest claim has this claim_id. This may be
// an older task: if it failed because its outcome was unknown, a late success still counts. If no recorded task has the
// claim_id, the result is the newest task, or an error if the newest task was not recorded.
func (h *handlers) taskOfClaim(ctx context.Context, l subscribe.Log, claim int64) (task.ID, error) {
	newest, err := h.env.Tasks.ByID(ctx, l.TaskID)
	if err != nil || newest.Queue == task.RecordedQueue && newest.ClaimID == claim {
		return newest.ID, err
	}
	earlier, found, err := h.env.Subscribe.RecordedSend(ctx, l.ID, claim)
	switch {
	case err != nil || found:
		return earlier, err
	case newest.Queue != task.RecordedQueue:
		return newest.ID, task.Refuse(task.CodeConflict, "the newest send of this message was not recorded: the function wechat sends it and updates its status")
	}
	return newest.ID, nil
}

// extend extends the lease of a message that is still being sent.
func (h *handlers) extend(ctx context.Context, c *fn.Call, l subscribe.Log, req *statusRequest) (any, error) {
	lease, err := h.env.Tasks.Extend(ctx, tasks.Extension{
		TaskID: l.TaskID, AppID: req.AppID, CallerID: c.Caller.ID, ClaimID: int64(req.ClaimID), Lease: decode.SecondsOr(req.LeaseSeconds, h.lease),
	}, c.Caller.Queues)
	if err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(lease.LeaseUntil)
	return api.SubscribeStatusResponse{
		ID: api.ID(l.ID), TaskID: l.TaskID.String(), SendStatus: int(l.Status), State: task.Processing.String(), RetryCount: l.RetryCount,
		LeaseUntil: fn.Instant(lease.LeaseUntil),
	}, nil
}
