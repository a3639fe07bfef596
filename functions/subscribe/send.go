package subscribe

import (
	"context"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

func (h *handlers) send(ctx context.Context, c *fn.Call, req sendRequest) (any, error) {
	s := h.submission(c, &req)
	s.Queue = task.WeChatQueue
	out, err := h.submit(ctx, c, s)
	if err != nil {
		return nil, err
	}
	h.wake(s, out)
	return response(out), nil
}

// submit checks a submission of the caller, commits it unless it is skipped, and sets the header Location.
func (h *handlers) submit(ctx context.Context, c *fn.Call, s *subscribe.Submission) (out subscribe.Submitted, err error) {
	if err := checkQueue(c, s.Queue); err != nil {
		return out, err
	}
	if err := checkBusinessType(c, s.BusinessType); err != nil {
		return out, err
	}
	if s.Refused == nil {
		blocked, err := h.env.Admin.Blocked(ctx, keywordText(s.Data))
		if err != nil {
			return out, err
		}
		if blocked {
			s.Refused = task.Refuse(task.CodeBlocked, "the message_data contains a blocked word; change the text")
		}
	}
	if out, err = h.env.Subscribe.SubmitWithinQuota(ctx, c.Caller, s); err != nil {
		return out, err
	}
	c.Header().Set("Location", location(out.ID))
	c.Log("subscribe_id", out.ID, "again", out.Again, "skipped", out.Skipped)
	if out.Skipped { // the original subscribe message service logs the same text
		h.env.Log.Info("消息已发送过，跳过重复发送", "subscribe_id", out.ID, "request_id", c.RequestID)
	}
	return out, nil
}

func location(id int64) string { return fmt.Sprintf("%s%d", root, id) }

// wake wakes the function wechat if the task is pending. It schedules sweep for the time when a scheduled task is due,
// or when a pending task with a TTL expires. All this happens for a skipped repeat too, because the process of the
// first request may have died before it did so.
func (h *handlers) wake(s *subscribe.Submission, out subscribe.Submitted) {
	switch out.State {
	case task.Scheduled:
		h.env.WakeSweepAt(s.SendAt)
	case task.Pending:
		h.env.WakeClaims(task.WeChatQueue, 1)
		if s.TTL > 0 {
			h.env.WakeSweepAt(time.Now().Add(s.TTL))
		}
	}
}

func response(out subscribe.Submitted) api.SubscribeResponse {
	return api.SubscribeResponse{
		ID: api.ID(out.ID), TaskID: out.TaskID.String(), SendStatus: int(out.Status), State: out.State.String(),
		Skipped: out.Skipped, DataDiffers: out.DataDiffers, Again: out.Again, Archived: out.Archived,
	}
}

type resendRequest api.SubscribeResendRequest

func (r *resendRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.AtMost("reason", r.Reason, maxReason)
	bad.When(r.Force && r.Reason == "", "reason", "is required if force is true: say why the message may be sent twice")
	return bad
}

// resend sends the message again with max_retries and on_unknown of its newest task. It keeps the callback URL of that
// task only if the caller that the message belongs to submitted the task.
func (h *handlers) resend(ctx context.Context, c *fn.Call, req resendRequest) (any, error) {
	l, err := h.readableMessage(ctx, c)
	if err != nil {
		return nil, err
	}
	newest, err := h.env.Tasks.ByID(ctx, l.TaskID)
	if err != nil {
		return nil, err
	}
	s := &subscribe.Submission{TaskID: task.NewID(), MaxRetries: newest.MaxRetries, OnUnknown: newest.OnUnknown, Metadata: noMetadata}
	if newest.CallerID == l.CallerID { // otherwise an admin submitted the newest task, and the callback URL is the admin's
		s.CallbackURL = newest.CallbackURL
	}
	out, err := h.env.Subscribe.Resend(ctx, l.ID, s, req.Force, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.wake(s, out)
	c.Header().Set("Location", location(out.ID))
	return response(out), nil
}
