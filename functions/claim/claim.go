// Package claim is the function that sender apps call for work:
//
//	GET|POST /api/v1/sms/tasks/pending
//	POST     /api/v1/sms/tasks/{task_id}/extend
//
// A claimed task belongs to one app of one caller until the app reports the task or its lease ends. A claim that finds too few pending
// tasks makes scheduled tasks that are due pending, and recovers zombies (tasks whose lease ended). So tasks are sent even if sweep
// never runs. A claim on a paused queue returns nothing. A claim that waits (a poll) claims again when the pause ends.
package claim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	LeaseMinutes int `envconfig:"PROCESSING_TIMEOUT_MINUTES" default:"10" desc:"lease of a claim that does not set lease_seconds, 1 to 60 minutes; when it has expired the task is a zombie"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.Between("PROCESSING_TIMEOUT_MINUTES", &c.LeaseMinutes, 1, 60)
	return bad
}

// Function serves the routes by which sender apps claim tasks and extend leases.
var Function = fn.HTTP("claim", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	c := &claimer{env, time.Duration(cfg.LeaseMinutes) * time.Minute}
	claim := fn.Parameters(fn.Sender, c.claim).Timeout((maxWait + 15) * time.Second).Changes()
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
	claimTimeout = 10 * time.Second
	bytesPerTask = 4 << 10     // memory reserved for each task until the response is written
	responseTime = time.Second // left for the response when the call has a deadline

	// pauseMargin is the time between the end of a pause and the next claim of a poll. Without the margin, the poll could claim in a
	// loop until the expired pause is removed.
	pauseMargin = 20 * time.Millisecond
)

type claimer struct {
	env   *fn.Env
	lease time.Duration
}

type (
	claimRequest  api.ClaimRequest
	extendRequest api.ExtendRequest
)

func (r *claimRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.App(r.AppID)
	bad.Between("limit", r.Limit, 1, maxLimit)
	bad.Between("wait", r.Wait, 0, maxWait)
	bad.SMSQueue("queue", r.Queue, "the function wechat, or the service that recorded them, sends these")
	bad.Lease(r.LeaseSeconds)
	return bad
}

func (r *extendRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.App(r.AppID)
	bad.Lease(r.LeaseSeconds)
	return bad
}

// claim returns tasks. With wait, it returns when there is at least one task, when the time is over, or when this process is about
// to end. While it waits, it does not query the database for tasks: a wake-up makes it claim again.
func (c *claimer) claim(ctx context.Context, call *fn.Call, req claimRequest) (any, error) {
	storeReq, err := c.newStoreRequest(call, &req)
	if err != nil {
		return nil, err
	}
	wait := decode.SecondsOr(req.Wait, 0)
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-responseTime) // the deadline of the platform may be earlier
	}
	var waitErr error // set if too many calls wait already
	if wait > 0 {
		if waitErr = call.StartWaiting(); waitErr != nil {
			wait = 0 // claim once without waiting
		}
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		response, claimAgain, err := c.claimOrWait(ctx, call, storeReq, timeout.C, wait > 0)
		switch {
		case err == nil && len(response) == 0 && waitErr != nil:
			return nil, waitErr
		case err != nil || !claimAgain:
			return response, err
		}
		storeReq.WokenUp = true
	}
}

// claimOrWait claims once and, if wait is true and there is no task, waits. If claimAgain is true, the poll must call claimOrWait
// again. The waiter is registered before the claim, so that the poll does not miss the wake-up for a task that is submitted right
// after the claim. Memory is reserved before the registration: the reservation may wait, and meanwhile other polls should get the
// wake-ups. A call with wait=0 registers no waiter, so it consumes no wake-up.
func (c *claimer) claimOrWait(ctx context.Context, call *fn.Call, storeReq tasks.ClaimRequest, timeout <-chan time.Time, wait bool) (response []api.ClaimedTask, claimAgain bool, err error) {
	callerChanged, err := c.prepare(ctx, call, &storeReq)
	if err != nil {
		c.passOnWakeUp(&storeReq)
		return nil, false, err
	}
	var woken <-chan struct{}
	leave := func() {}
	if wait {
		waiter := c.env.RegisterWaiter(storeReq.Queue)
		woken, leave = waiter.C, waiter.Close
	}
	defer leave()
	claimed, pending, err := c.claimNow(ctx, storeReq)
	if len(claimed) == 0 {
		call.Unreserve() // a waiting poll needs no memory for tasks
	}
	if err != nil || len(claimed) > 0 || ctx.Err() != nil {
		leave() // before WakeClaims, which must wake other polls
	}
	for queue, n := range pending {
		c.env.WakeClaims(queue, n)
	}
	if err != nil {
		c.passOnWakeUp(&storeReq)
		return nil, false, err
	}
	if ctx.Err() != nil {
		return nil, false, errors.Join(c.giveBack(call, storeReq, claimed, "the app disconnected before the response"), context.Cause(ctx))
	}
	if err := c.recheckIfChanged(ctx, call, storeReq.Queue, callerChanged); err != nil {
		return nil, false, errors.Join(err, c.giveBack(call, storeReq, claimed, "the check of the caller after the claim failed"))
	}
	if len(claimed) > 0 {
		c.env.WakeSweepAt(claimed[0].LeaseUntil)
	}
	if len(claimed) > 0 || !wait {
		call.Log("claimed", len(claimed))
		return claimedTasks(claimed), false, nil
	}
	claimAgain, err = c.waitForTask(ctx, call, storeReq.Queue, woken, callerChanged, timeout)
	return []api.ClaimedTask{}, claimAgain, err
}

// waitForTask waits until the poll should claim again or its time is over.
func (c *claimer) waitForTask(ctx context.Context, call *fn.Call, queue string, woken, callerChanged <-chan struct{}, timeout <-chan time.Time) (claimAgain bool, err error) {
	resumed, err := c.resumed(ctx, queue)
	if err != nil {
		return false, err
	}
	for {
		select {
		case <-woken:
			return true, nil
		case <-resumed:
			return true, nil
		case <-callerChanged:
			if callerChanged, err = c.recheck(ctx, call, queue); err != nil {
				return false, err
			}
		case <-timeout:
			return false, nil
		case <-c.env.Draining():
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// prepare checks that the caller may still claim, and reserves memory. If this poll has to wait for memory, prepare first passes the
// poll's wake-up on to another poll. callerChanged is closed when the caller must be checked again.
func (c *claimer) prepare(ctx context.Context, call *fn.Call, storeReq *tasks.ClaimRequest) (callerChanged <-chan struct{}, err error) {
	if callerChanged, err = c.recheck(ctx, call, storeReq.Queue); err != nil {
		return nil, err
	}
	memory := storeReq.Limit * bytesPerTask
	if call.TryReserve(memory) == nil {
		return callerChanged, nil
	}
	c.passOnWakeUp(storeReq)
	return callerChanged, call.Reserve(ctx, memory)
}

// passOnWakeUp wakes another poll if this poll was woken.
func (c *claimer) passOnWakeUp(storeReq *tasks.ClaimRequest) {
	if storeReq.WokenUp {
		storeReq.WokenUp = false
		c.env.WakeClaims(storeReq.Queue, 1)
	}
}

// recheck refuses a caller that was revoked or lost the queue since the poll began. callerChanged is closed when the caller must
// be checked again.
func (c *claimer) recheck(ctx context.Context, call *fn.Call, queue string) (callerChanged <-chan struct{}, err error) {
	if callerChanged, err = call.Recheck(ctx); err != nil {
		return nil, err
	}
	return callerChanged, checkQueue(call, queue)
}

func checkQueue(call *fn.Call, queue string) error {
	if !call.MayUseQueue(queue) {
		return task.Refuse(task.CodeForbidden, "this caller may not claim from queue "+queue)
	}
	return nil
}

// claimNow claims once. It completes the claim even if the app disconnects, because the tasks of a cancelled claim could stay claimed
// until their leases end.
func (c *claimer) claimNow(ctx context.Context, storeReq tasks.ClaimRequest) ([]tasks.Claimed, tasks.PendingByQueue, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	return c.env.Tasks.Claim(ctx, storeReq)
}

// resumed returns a channel that fires when the pause of the queue expires; nil if there is no pause, or one without an end. With
// the channel, the poll claims again even if no other process wakes the poll. resumed must be called after the claim, to find the
// pause that made the claim return nothing. If this pause expires between the two calls, resumed still finds its row, or a sweep has
// removed the row and wakes polls for the pending tasks.
func (c *claimer) resumed(ctx context.Context, queue string) (<-chan time.Time, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	p, _, err := c.env.Tasks.QueuePause(ctx, queue)
	if err != nil || p.Until.IsZero() {
		return nil, err
	}
	c.env.WakeSweepAt(p.Until) // the process that paused the queue may have died before it scheduled sweep
	return time.After(max(p.Left, 0) + pauseMargin), nil
}

// recheckIfChanged calls recheck if callerChanged was closed during the claim.
func (c *claimer) recheckIfChanged(ctx context.Context, call *fn.Call, queue string, callerChanged <-chan struct{}) error {
	select {
	case <-callerChanged:
		_, err := c.recheck(ctx, call, queue)
		return err
	default:
		return nil
	}
}

// giveBack releases claimed tasks that the app has not received and so cannot have sent.
func (c *claimer) giveBack(call *fn.Call, storeReq tasks.ClaimRequest, claimed []tasks.Claimed, why string) error {
	reports := make([]*tasks.Report, len(claimed))
	for i, t := range claimed {
		reports[i] = &tasks.Report{Request: storeReq.Request, Report: task.Report{
			TaskID: t.ID, AppID: storeReq.AppID, CallerID: storeReq.CallerID, ClaimID: t.ClaimID, Outcome: task.Released, Message: why,
		}}
	}
	_, errs := c.env.Tasks.Report(reports)
	c.env.WakeClaims(storeReq.Queue, len(claimed))
	call.Log("given_back", len(claimed))
	return errors.Join(errs...)
}

func (c *claimer) newStoreRequest(call *fn.Call, req *claimRequest) (tasks.ClaimRequest, error) {
	storeReq := tasks.ClaimRequest{
		Queue: cmp.Or(req.Queue, task.DefaultQueue), AppID: req.AppID, CallerID: call.Caller.ID, Limit: decode.ValueOr(req.Limit, defaultLimit),
		Lease: decode.SecondsOr(req.LeaseSeconds, c.lease), MarksSending: req.MarksSending,
	}
	if err := checkQueue(call, storeReq.Queue); err != nil {
		return storeReq, err
	}
	logged, err := json.Marshal(map[string]any{
		"request_id": call.RequestID, "queue": storeReq.Queue, "limit": storeReq.Limit, "lease_seconds": storeReq.Lease.Seconds(), "marks_sending": storeReq.MarksSending,
	})
	storeReq.Request = logged
	return storeReq, err
}

func claimedTasks(claimed []tasks.Claimed) []api.ClaimedTask {
	response := make([]api.ClaimedTask, len(claimed))
	for i, t := range claimed {
		response[i] = api.ClaimedTask{
			TaskID: t.ID.String(), PhoneNumber: t.Phone, Content: t.Content,
			ClaimID: api.ID(t.ClaimID), LeaseUntil: t.LeaseUntil.UTC(), RetryCount: int(t.RetryCount),
		}
	}
	return response
}

func (c *claimer) extend(ctx context.Context, call *fn.Call, req extendRequest) (any, error) {
	id, err := call.TaskID()
	if err != nil {
		return nil, err
	}
	lease, err := c.env.Tasks.Extend(ctx, tasks.Extension{
		TaskID: id, AppID: req.AppID, CallerID: call.Caller.ID, ClaimID: int64(req.ClaimID), Lease: decode.SecondsOr(req.LeaseSeconds, c.lease), Sending: req.Sending,
	}, call.Caller.Queues)
	if err != nil {
		return nil, err
	}
	c.env.WakeSweepAt(lease.LeaseUntil)
	return api.ExtendResponse{TaskID: id.String(), ClaimID: api.ID(lease.ClaimID), LeaseUntil: lease.LeaseUntil.UTC(), Sending: lease.Sending}, nil
}
