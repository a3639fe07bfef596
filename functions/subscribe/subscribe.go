// Package subscribe is the function that services call to send a WeChat subscribe message, at most one for each business event
// and user:
//
//	POST /api/v1/subscribe/send
//	GET  /api/v1/subscribe/sent
//	GET  /api/v1/subscribe/logs, /api/v1/subscribe/{id}, /api/v1/subscribe/messages
//	GET  /api/v1/subscribe/statistics, /api/v1/subscribe/failures
//	POST /api/v1/subscribe/{id}/resend
//
// A service that calls WeChat itself records the message first and then reports the outcome:
//
//	POST /api/v1/subscribe/record
//	POST /api/v1/subscribe/{id}/status
//
// The unique index uk_business_template_receiver decides whether a request is a repeat. A repeat is skipped if the message is
// sent or being sent. If the message failed, it is sent again under the same id.
//
// All callers share the keys of that index. The response to a request for another caller's message depends on the caller that
// makes the request:
//   - A caller with a list of business types may use only these. Its request is refused in every state of the message.
//   - A caller without a list may use all types. Its request is skipped, without comparing the data, if the message is sent or
//     being sent, and refused if the message failed.
//   - An admin gets the same response as for its own message: a failed message is sent again.
package subscribe

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	MaxRetries   int `envconfig:"MAX_RETRY_COUNT" default:"3" desc:"retries of a task that does not set max_retries, 0 to 10; 3 = at most four claims"`
	LeaseMinutes int `envconfig:"PROCESSING_TIMEOUT_MINUTES" default:"10" desc:"lease of a claim that does not set lease_seconds, 1 to 60 minutes; when it has expired the task is a zombie"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.Rules
	bad.Between("MAX_RETRY_COUNT", &c.MaxRetries, 0, task.MaxRetriesCap)
	bad.Between("PROCESSING_TIMEOUT_MINUTES", &c.LeaseMinutes, 1, 60)
	return bad
}

// Function serves the routes of WeChat subscribe messages.
var Function = fn.HTTP("subscribe", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	h := &handlers{admin: env.Admin, subscribe: env.Subscribe, tasks: env.Tasks, env: env, maxRetries: cfg.MaxRetries, lease: time.Duration(cfg.LeaseMinutes) * time.Minute}
	return fn.Routes{
		"POST " + root + "send":        fn.JSON(fn.Submitter, h.send),
		"POST " + root + "record":      fn.JSON(fn.Submitter, h.record),
		"POST " + root + "{id}/status": fn.JSON(fn.Submitter, h.status).MaxBody(maxStatusBody),

		"GET " + root + "sent":       fn.List(fn.Submitter, h.sent),
		"GET " + root + "logs":       fn.List(fn.Submitter, h.logs).Or(fn.Viewer),
		"GET " + root + "messages":   fn.List(fn.Submitter, h.list).Or(fn.Viewer).Timeout(readTimeout),
		"GET " + root + "{id}":       fn.List(fn.Submitter, h.detail).Or(fn.Viewer),
		"GET " + root + "statistics": fn.List(fn.Submitter, h.statistics).Or(fn.Viewer),
		"GET " + root + "failures":   fn.List(fn.Submitter, h.failures).Or(fn.Viewer),

		"POST " + root + "{id}/resend": fn.Query(fn.Admin, h.resend),
	}
}

const (
	root          = "/api/v1/subscribe/"
	resourceName  = "subscribe message" // what error texts call the resource that {id} identifies
	maxStatusBody = 1 << 20             // a long error_message is truncated, not refused

	readTimeout = 15 * time.Second // the statement timeout of the database role for reads
)

// handlers has the handlers of all routes.
type handlers struct {
	admin      *admin.Store
	subscribe  *subscribe.Store
	tasks      *tasks.Store
	env        *fn.Env
	maxRetries int
	lease      time.Duration
}

func (h *handlers) send(ctx context.Context, c *fn.Call, req sendRequest) (any, error) {
	s := req.submission(c, h.maxRetries, h.env.Config.OutgoingNetworks)
	s.Queue = task.WeChatQueue
	out, err := h.submit(ctx, c, s)
	if err != nil {
		return nil, err
	}
	h.wake(s, out)
	return response(out), nil
}

func checkQueue(c *fn.Call, queue string) error {
	if c.MayUseQueue(queue) {
		return nil
	}
	return task.Refuse(task.CodeForbidden, "this caller may not submit to queue "+queue)
}

// submit checks and commits a submission of the caller, and sets the header Location.
func (h *handlers) submit(ctx context.Context, c *fn.Call, s *subscribe.Submission) (out subscribe.Submitted, err error) {
	if err := checkQueue(c, s.Queue); err != nil {
		return out, err
	}
	if err := checkBusinessType(c, s.BusinessType); err != nil {
		return out, err
	}
	if s.Refused == nil {
		blocked, err := h.admin.Blocked(ctx, keywordText(s.Data))
		if err != nil {
			return out, err
		}
		if blocked {
			s.Refused = task.Refuse(task.CodeBlocked, "the message_data holds a blocked word; change the text")
		}
	}
	if out, err = h.subscribe.SubmitWithinQuota(ctx, c.Caller, s); err != nil {
		return out, err
	}
	c.Header().Set("Location", location(out.ID))
	c.Log("subscribe_id", out.ID, "again", out.Again, "skipped", out.Skipped)
	if out.Skipped { // the text is that of the original subscribe message service
		h.env.Log.Info("消息已发送过，跳过重复发送", "subscribe_id", out.ID, "request_id", c.RequestID)
	}
	return out, nil
}

// checkBusinessType refuses a business type that is not among those of the caller.
func checkBusinessType(c *fn.Call, name string) error {
	if c.MayUseBusinessType(name) {
		return nil
	}
	return &task.Error{Code: task.CodeForbidden, Message: "this caller may not use this business type", Fields: []task.Field{
		{Name: "business_type", Message: "must be one of " + strings.Join(c.Caller.BusinessTypes, ", ")},
	}}
}

func location(id int64) string { return fmt.Sprintf("%s%d", root, id) }

// wake wakes the function wechat if the task is pending, and schedules sweep for when the task is due or expires. It is also
// called for a skipped repeat: the process of the first request may have died before its wake-up.
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

// ownMessage returns the message of the path. The error is not_found for another caller's message, unless the caller is an admin
// or a viewer.
func (h *handlers) ownMessage(ctx context.Context, c *fn.Call) (subscribe.Log, error) {
	id, err := fn.RowID[int64](c, resourceName)
	if err != nil {
		return subscribe.Log{}, err
	}
	l, err := h.subscribe.LogByID(ctx, id)
	if err == nil && l.CallerID != c.Caller.ID && !c.ReadsAll() {
		return subscribe.Log{}, noMessage()
	}
	return l, err
}

func noMessage() error { return task.Refuse(task.CodeNotFound, "no such "+resourceName) }

// resendRequest adds validation to api.SubscribeResendRequest.
type resendRequest api.SubscribeResendRequest

func (r *resendRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.AtMost("reason", r.Reason, maxReason)
	bad.When(r.Force && r.Reason == "", "reason", "is required with force: why the message may be sent twice")
	return bad
}

// resend sends the message again, with the retries, policy and callback of its newest task.
func (h *handlers) resend(ctx context.Context, c *fn.Call, req resendRequest) (any, error) {
	l, err := h.ownMessage(ctx, c)
	if err != nil {
		return nil, err
	}
	newest, err := h.tasks.ByID(ctx, l.TaskID)
	if err != nil {
		return nil, err
	}
	s := &subscribe.Submission{
		TaskID: task.NewID(), MaxRetries: newest.MaxRetries, OnUnknown: newest.OnUnknown, CallbackURL: newest.CallbackURL, Metadata: noMetadata,
	}
	out, err := h.subscribe.Resend(ctx, l.ID, s, req.Force, c.Operator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.wake(s, out)
	c.Header().Set("Location", location(out.ID))
	return response(out), nil
}
