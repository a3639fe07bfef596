// Package claim is the function that sender apps call for work:
//
//	GET|POST /api/v1/sms/tasks/pending
//	POST     /api/v1/sms/tasks/{task_id}/extend
//
// A claimed task belongs to one app of one caller until its lease ends. Pollers alone keep
// the job going: a claim that finds too little first promotes what fell due. A
// paused queue hands out nothing, and a poll that waits on it looks again when its
// pause ends.
package claim

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	LeaseMinutes int `envconfig:"PROCESSING_TIMEOUT_MINUTES" default:"10" desc:"lease of a claim that does not ask for lease_seconds, 1 to 60 minutes; then the task is a zombie"`
}

// Validate holds the setting to what a claim may ask for.
func (c *Config) Validate() []task.Field {
	if c.LeaseMinutes < 1 || c.LeaseMinutes > 60 {
		return []task.Field{{Name: "PROCESSING_TIMEOUT_MINUTES", Message: "must be between 1 and 60"}}
	}
	return nil
}

// Function is this package's line in the catalogue.
var Function = fn.HTTP("claim", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	c := &claimer{
		db: env.DB(), env: env,
		lease: time.Duration(cfg.LeaseMinutes) * time.Minute,
	}
	claim := fn.Query(fn.Sender, c.claim).Timeout((maxWait + 15) * time.Second).Changes()
	return fn.Routes{
		"GET /api/v1/sms/tasks/pending":           claim,
		"POST /api/v1/sms/tasks/pending":          claim,
		"POST /api/v1/sms/tasks/{task_id}/extend": fn.JSON(fn.Sender, c.extend),
	}
}

const (
	defaultLimit = 10
	maxLimit     = 1000
	maxWait      = 30 // seconds
	minLease     = 10 // seconds
	maxLease     = 3600
	lookLimit    = 10 * time.Second
	taskCharge   = 4 << 10     // bytes that a task takes until it is answered
	answerMargin = time.Second // for the answer of a poll whose call must end

	// pauseMargin keeps a poll from looking again and again at a pause that is over
	// and that somebody is about to remove.
	pauseMargin = 20 * time.Millisecond
)

type claimer struct {
	db    *store.DB
	env   *fn.Env
	lease time.Duration
}

// claimRequest is api.ClaimRequest with its rules.
type claimRequest api.ClaimRequest

// Validate names every field whose value is not acceptable.
func (r *claimRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.App(r.AppID)
	bad.Between("limit", r.Limit, 1, maxLimit)
	bad.Between("wait", r.Wait, 0, maxWait)
	bad.SMSQueue("queue", r.Queue, "the function wechat, or the service that recorded them, sends these")
	bad.Between("lease_seconds", r.LeaseSeconds, minLease, maxLease)
	return bad
}

// extendRequest is api.ExtendRequest with its rules.
type extendRequest api.ExtendRequest

// Validate names every field whose value is not acceptable.
func (r *extendRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.App(r.AppID)
	bad.Between("lease_seconds", r.LeaseSeconds, minLease, maxLease)
	return bad
}

func (c *claimer) leaseOf(seconds *int) time.Duration {
	if seconds == nil {
		return c.lease
	}
	return time.Duration(*seconds) * time.Second
}

// claim hands out tasks, and with wait stays until there is one. It waits for
// a wake-up, not for the database: the waiter is registered before the look,
// so that no task slips in between.
func (c *claimer) claim(ctx context.Context, call *fn.Call, req claimRequest) (any, error) {
	want, err := c.storeRequest(call, &req)
	if err != nil {
		return nil, err
	}
	var wait time.Duration
	if req.Wait != nil {
		wait = time.Duration(*req.Wait) * time.Second
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-answerMargin) // the host's may be shorter than ours
	}
	var full error
	if wait > 0 {
		if full = call.StartWaiting(); full != nil {
			wait = 0 // what is there is handed out all the same
		}
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	for {
		tasks, more, err := c.once(ctx, call, want, patience.C, wait > 0)
		switch {
		case err == nil && len(tasks) == 0 && full != nil:
			return nil, full
		case err != nil || !more:
			return tasks, err
		}
		want.WokenUp = true
	}
}

// once looks for work and, when there is none, waits for a wake-up: more says
// that one came. Who does not wait takes no wake-up from those who do.
func (c *claimer) once(ctx context.Context, call *fn.Call, want store.ClaimRequest, patience <-chan time.Time, wait bool) (tasks []api.ClaimedTask, more bool, err error) {
	var woken <-chan struct{}
	leave := func() {}
	if wait {
		waiter := c.env.RegisterWaiter(want.Queue)
		woken, leave = waiter.C, waiter.Close
	}
	defer leave()
	changed, err := c.recheck(ctx, call, want.Queue)
	if err != nil {
		return nil, false, err
	}
	if err := call.Reserve(ctx, want.Limit*taskCharge); err != nil {
		if want.WokenUp {
			leave()
			c.env.WakeClaims(want.Queue, 1) // another poll takes what this one was woken for
		}
		return nil, false, err
	}
	claimed, touched, err := c.look(ctx, want)
	if len(claimed) == 0 {
		call.Unreserve() // others may look while this call waits
	}
	if err != nil || len(claimed) > 0 || ctx.Err() != nil {
		leave() // what is there now is for others
	}
	for queue, n := range touched {
		c.env.WakeClaims(queue, n)
	}
	if err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil {
		return nil, false, c.giveBack(ctx, call, want, claimed)
	}
	if len(claimed) > 0 {
		c.env.WakeSweepAt(claimed[0].LeaseUntil)
	}
	if len(claimed) > 0 || !wait {
		call.Log("claimed", len(claimed))
		return wire(claimed), false, nil
	}
	resumed, err := c.resumed(ctx, want.Queue)
	if err != nil {
		return nil, false, err
	}
	for {
		select {
		case <-woken:
			return nil, true, nil
		case <-resumed:
			return nil, true, nil
		case <-changed:
			if changed, err = c.recheck(ctx, call, want.Queue); err != nil {
				return nil, false, err
			}
			continue
		case <-patience:
		case <-c.env.Draining():
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		return []api.ClaimedTask{}, false, nil
	}
}

// recheck refuses a caller that was revoked, or lost the queue, since the poll
// began. changed is closed when it is time to look again.
func (c *claimer) recheck(ctx context.Context, call *fn.Call, queue string) (changed <-chan struct{}, err error) {
	if changed, err = call.Recheck(ctx); err != nil {
		return nil, err
	}
	return changed, mayClaim(call, queue)
}

func mayClaim(call *fn.Call, queue string) error {
	if !call.MayUseQueue(queue) {
		return task.Refuse(task.CodeForbidden, "this caller may not claim from queue "+queue)
	}
	return nil
}

// look claims even when the app leaves meanwhile: a claim broken off half-way
// would hold its tasks until their leases end.
func (c *claimer) look(ctx context.Context, want store.ClaimRequest) ([]store.Claimed, store.PendingByQueue, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
	defer cancel()
	return c.db.Claim(ctx, want)
}

// resumed fires when the pause of a queue ends by itself, so that nobody need
// live on to tell the poll; nil when it has none that does. It is asked for after the
// look: a pause that ended in between is still there to be seen.
func (c *claimer) resumed(ctx context.Context, queue string) (<-chan time.Time, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
	defer cancel()
	p, _, err := c.db.QueuePause(ctx, queue)
	if err != nil || p.Until.IsZero() {
		return nil, err
	}
	c.env.WakeSweepAt(p.Until) // who paused the queue may have died before it said so
	return time.After(max(p.Left, 0) + pauseMargin), nil
}

// giveBack releases what was claimed for an app that has left: it was never
// told, so nothing can have been sent.
func (c *claimer) giveBack(ctx context.Context, call *fn.Call, want store.ClaimRequest, claimed []store.Claimed) error {
	reports := make([]*store.Report, len(claimed))
	for i, t := range claimed {
		reports[i] = &store.Report{Request: want.Request, Report: task.Report{
			TaskID: t.ID, AppID: want.AppID, CallerID: want.CallerID, ClaimID: t.ClaimID, Outcome: task.Released, Message: "the app left before it was answered",
		}}
	}
	_, errs := c.db.Report(reports)
	c.env.WakeClaims(want.Queue, len(claimed))
	call.Log("given_back", len(claimed))
	return errors.Join(append(errs, context.Cause(ctx))...)
}

func (c *claimer) storeRequest(call *fn.Call, req *claimRequest) (store.ClaimRequest, error) {
	want := store.ClaimRequest{
		Queue: task.DefaultQueue, AppID: req.AppID, CallerID: call.Caller.ID, Limit: defaultLimit,
		Lease: c.leaseOf(req.LeaseSeconds), MarksSending: req.MarksSending,
	}
	if req.Queue != "" {
		want.Queue = req.Queue
	}
	if req.Limit != nil {
		want.Limit = *req.Limit
	}
	if err := mayClaim(call, want.Queue); err != nil {
		return want, err
	}
	logged, err := json.Marshal(map[string]any{
		"request_id": call.RequestID, "queue": want.Queue, "limit": want.Limit, "lease_seconds": want.Lease.Seconds(), "marks_sending": want.MarksSending,
	})
	want.Request = logged
	return want, err
}

func wire(claimed []store.Claimed) []api.ClaimedTask {
	tasks := make([]api.ClaimedTask, len(claimed))
	for i, t := range claimed {
		tasks[i] = api.ClaimedTask{
			TaskID: t.ID.String(), PhoneNumber: t.Phone, Content: t.Content,
			ClaimID: api.ID(t.ClaimID), LeaseUntil: t.LeaseUntil.UTC(), RetryCount: int(t.RetryCount),
		}
	}
	return tasks
}

func (c *claimer) extend(ctx context.Context, call *fn.Call, req extendRequest) (any, error) {
	id, err := call.TaskID()
	if err != nil {
		return nil, err
	}
	lease, err := c.db.Extend(ctx, store.Extension{
		TaskID: id, AppID: req.AppID, CallerID: call.Caller.ID, ClaimID: int64(req.ClaimID), Lease: c.leaseOf(req.LeaseSeconds), Sending: req.Sending,
	}, call.Caller.Queues)
	if err != nil {
		return nil, err
	}
	c.env.WakeSweepAt(lease.LeaseUntil)
	return api.ExtendResponse{TaskID: id.String(), ClaimID: api.ID(lease.ClaimID), LeaseUntil: lease.LeaseUntil.UTC(), Sending: lease.Sending}, nil
}
