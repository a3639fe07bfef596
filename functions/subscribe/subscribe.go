// Package subscribe is the function that services call to have WeChat send a
// subscribe message, one for each business event and user (seed 000):
//
//	POST /api/v1/subscribe/send
//	GET  /api/v1/subscribe/sent
//	GET  /api/v1/subscribe/logs, /api/v1/subscribe/{id}
//	GET  /api/v1/subscribe/statistics, /api/v1/subscribe/failures
//	POST /api/v1/subscribe/{id}/resend
//
// A service that calls WeChat itself records the message first and tells what
// became of it:
//
//	POST /api/v1/subscribe/record
//	POST /api/v1/subscribe/{id}/status
//
// The unique index uk_business_template_receiver alone decides whether an order is
// the first. Of one that is sent or being sent a repeat is skipped; one that failed
// is sent again on its row.
//
// The keys of that index are common to all callers. A caller that was granted business
// types may use no other, and is told nothing about another caller's message, whatever
// became of that: its order is refused. A caller without such a list may use all types:
// its order for another caller's message is skipped while that is sent or being sent,
// without a comparison of the data, and refused once that has failed.
package subscribe

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	MaxRetries   int16 `envconfig:"MAX_RETRY_COUNT" default:"3" desc:"retries of a task that does not say otherwise, 0 to 10; 3 means at most four claims"`
	LeaseMinutes int   `envconfig:"PROCESSING_TIMEOUT_MINUTES" default:"10" desc:"lease of a claim that does not ask for lease_seconds, 1 to 60 minutes; then the task is a zombie"`
}

// Validate holds the settings to what an order and a claim may ask for.
func (c *Config) Validate() (bad []task.Field) {
	if c.MaxRetries < 0 || c.MaxRetries > task.MaxRetriesCap {
		bad = append(bad, task.Field{Name: "MAX_RETRY_COUNT", Message: "must be between 0 and 10"})
	}
	if c.LeaseMinutes < 1 || c.LeaseMinutes > 60 {
		bad = append(bad, task.Field{Name: "PROCESSING_TIMEOUT_MINUTES", Message: "must be between 1 and 60"})
	}
	return bad
}

// Function is this package's line in the catalogue.
var Function = fn.HTTP("subscribe", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	d := &desk{db: env.DB(), env: env, maxRetries: cfg.MaxRetries, lease: time.Duration(cfg.LeaseMinutes) * time.Minute}
	return fn.Routes{
		"POST " + root + "send":        fn.JSON(fn.Submitter, d.send),
		"POST " + root + "record":      fn.JSON(fn.Submitter, d.record),
		"POST " + root + "{id}/status": fn.JSON(fn.Submitter, d.status).MaxBody(maxStatusBody),

		"GET " + root + "sent":       fn.List(fn.Submitter, d.sent),
		"GET " + root + "logs":       fn.List(fn.Submitter, d.logs),
		"GET " + root + "{id}":       fn.List(fn.Submitter, d.detail),
		"GET " + root + "statistics": fn.List(fn.Submitter, d.statistics),
		"GET " + root + "failures":   fn.List(fn.Submitter, d.failures),

		"POST " + root + "{id}/resend": fn.Query(fn.Admin, d.resend),
	}
}

const (
	root          = "/api/v1/subscribe/"
	oneMessage    = "subscribe message"
	maxStatusBody = 1 << 20 // error_message is cut, never refused
)

// skippedMessage is what the log says of a message that is not sent twice (seed 000).
const skippedMessage = "消息已发送过，跳过重复发送"

// desk is where messages are ordered.
type desk struct {
	db         *store.DB
	env        *fn.Env
	maxRetries int16
	lease      time.Duration
}

func (d *desk) send(ctx context.Context, c *fn.Call, req sendRequest) (any, error) {
	s := req.subscription(c, d.maxRetries)
	s.Queue = task.WeChatQueue
	out, err := d.order(ctx, c, s)
	if err != nil {
		return nil, err
	}
	d.wake(s, out)
	return response(out), nil
}

func checkQueue(c *fn.Call, queue string) error {
	if c.MayUseQueue(queue) {
		return nil
	}
	return task.Refuse(task.CodeForbidden, "this caller may not submit to queue "+queue)
}

// order takes an order on and says where its message is read.
func (d *desk) order(ctx context.Context, c *fn.Call, s *store.Subscription) (out store.Subscribed, err error) {
	if err := checkQueue(c, s.Queue); err != nil {
		return out, err
	}
	if err := checkBusinessType(c, s.BusinessType); err != nil {
		return out, err
	}
	if s.Refused == nil {
		blocked, err := d.db.Blocked(ctx, texts(s.Data))
		if err != nil {
			return out, err
		}
		if blocked {
			s.Refused = task.Refuse(task.CodeBlocked, "the message_data holds a blocked word; change the text")
		}
	}
	if out, err = d.db.SubscribeWithinQuota(ctx, c.Caller, s); err != nil {
		return out, err
	}
	c.Header().Set("Location", location(out.ID))
	c.Log("subscribe_id", out.ID, "again", out.Again, "skipped", out.Skipped)
	if out.Skipped {
		d.env.Log.Info(skippedMessage, "subscribe_id", out.ID, "request_id", c.RequestID)
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

// wake tells who sends to WeChat of a message that is to be had, and the clock of
// when its task falls due. So does an order that is skipped: the one before it may
// have died before it said so.
func (d *desk) wake(s *store.Subscription, out store.Subscribed) {
	switch out.State {
	case task.Scheduled:
		d.env.WakeSweepAt(s.SendAt)
	case task.Pending:
		d.env.WakeClaims(task.WeChatQueue, 1)
		if s.TTL > 0 {
			d.env.WakeSweepAt(time.Now().Add(s.TTL))
		}
	}
}

func response(out store.Subscribed) api.SubscribeResponse {
	return api.SubscribeResponse{
		ID: api.ID(out.ID), TaskID: out.TaskID.String(), SendStatus: int(out.Status), State: out.State.String(),
		Skipped: out.Skipped, DataDiffers: out.DataDiffers, Again: out.Again, Archived: out.Archived,
	}
}

// own finds the message of the path; another caller's does not exist, except for an
// admin.
func (d *desk) own(ctx context.Context, c *fn.Call) (store.SubscribeLog, error) {
	id, err := fn.RowID[int64](c, oneMessage)
	if err != nil {
		return store.SubscribeLog{}, err
	}
	l, err := d.db.SubscribeLog(ctx, id)
	if err == nil && l.CallerID != c.Caller.ID && !c.May(fn.Admin) {
		return store.SubscribeLog{}, noMessage()
	}
	return l, err
}

func noMessage() error { return task.Refuse(task.CodeNotFound, "no such "+oneMessage) }

// resendRequest is api.SubscribeResendRequest with its rules.
type resendRequest api.SubscribeResendRequest

// Validate names every field whose value is not acceptable.
func (r *resendRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.AtMost("reason", r.Reason, maxReason)
	bad.When(r.Force && r.Reason == "", "reason", "is required with force: say why the message is sent twice")
	return bad
}

// resend has the message sent by the rules of its newest send.
func (d *desk) resend(ctx context.Context, c *fn.Call, req resendRequest) (any, error) {
	l, err := d.own(ctx, c)
	if err != nil {
		return nil, err
	}
	newest, err := d.db.Task(ctx, l.TaskID)
	if err != nil {
		return nil, err
	}
	s := &store.Subscription{
		TaskID: task.NewID(), MaxRetries: newest.MaxRetries, OnUnknown: newest.OnUnknown, CallbackURL: newest.CallbackURL, Metadata: noMetadata,
	}
	out, err := d.db.ResendSubscription(ctx, l.ID, s, req.Force, c.Operator(req.Reason))
	if err != nil {
		return nil, err
	}
	d.wake(s, out)
	c.Header().Set("Location", location(out.ID))
	return response(out), nil
}
