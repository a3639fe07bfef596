package sender

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	lateReturnTime = 5 * time.Second // for Send to return after its ctx has ended
	maxDelay       = time.Minute     // the longest time by which one RetryAfter delays later sends
)

// newAttempt makes an attempt and extends its lease in the background until a.done is called.
func (r *run) newAttempt(t api.ClaimedTask) *attempt {
	a := &attempt{task: t}
	a.ctx, a.cancel = context.WithCancelCause(r.sending)
	lifetime, end := context.WithCancel(context.WithoutCancel(r.running))
	a.lifetime, a.done = lifetime, func() {
		end()
		r.slots <- struct{}{}
	}
	a.expiry = time.AfterFunc(r.usableLease(), func() { a.cancel(errExpired) })
	r.leases.Go(func() { r.extendLease(a) })
	return a
}

// usableLease is the part of a lease during which a send may run: the send must end before the server gives the task to
// another sender.
func (r *run) usableLease() time.Duration { return r.Lease * 9 / 10 }

// extendLease extends the lease until a.done is called or the claim is lost. It returns after a.done.
func (r *run) extendLease(a *attempt) {
	defer a.expiry.Stop()
	defer a.cancel(nil)
	tick := time.NewTicker(r.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.lifetime.Done():
			return
		}
		ctx, cancel := context.WithTimeout(a.lifetime, r.Lease/3)
		err := r.extend(ctx, a, false)
		cancel()
		if errors.Is(err, errLost) {
			a.cancel(err)
			<-a.lifetime.Done()
			return
		}
		if err != nil && a.lifetime.Err() == nil {
			r.Log.WarnContext(ctx, "sender: lease not extended", "task_id", a.task.TaskID, "error", err)
		}
	}
}

// extend extends the lease once and, if sending is true, marks the task as sending. It returns errLost if the claim has
// ended, or if the task expired before it was marked.
func (r *run) extend(ctx context.Context, a *attempt, sending bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	started := time.Now() // the server's lease starts later than this
	_, err := r.Client.Extend(ctx, a.task.TaskID, api.ExtendRequest{
		AppID: r.AppID, ClaimID: a.task.ClaimID, LeaseSeconds: &r.lease, Sending: sending,
	})
	if err == nil {
		a.expiry.Reset(time.Until(started.Add(r.usableLease())))
		return nil
	}
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code != "" && (refused.Status == http.StatusConflict || refused.Status == http.StatusNotFound) {
		return errLost
	}
	return err
}

// process sends a task and queues its report. If the claim is lost before the send, process does neither.
func (r *run) process(a *attempt) {
	err := r.prepare(a)
	if errors.Is(err, errLost) { // no report is needed: the server has settled the task, or does so when the lease ends
		r.Log.WarnContext(a.lifetime, "sender: not sent", "task_id", a.task.TaskID, "error", err)
		a.done()
		return
	}
	if err != nil {
		r.reporter.add(pendingReport{report: reportOf(a.task, notSent(err), time.Now()), done: a.done})
		return
	}
	r.finish(a, r.send(a))
}

// prepare waits for the interval, marks the task as sending and writes it to the journal as unknown. After an
// error the message must not be sent.
func (r *run) prepare(a *attempt) error {
	ctx, cancel := r.untilStopped(a)
	defer cancel()
	if err := r.markPace.wait(ctx); err != nil {
		return err
	}
	if err := r.extend(ctx, a, true); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, errLost) {
			r.Log.WarnContext(ctx, "sender: not marked as sending", "task_id", a.task.TaskID, "error", err)
			r.markPace.delay(time.Second)
		}
		return err
	}
	if err := r.journal.put(reportOf(a.task, Result{Message: "the sender ended before it recorded the outcome"}, time.Time{})); err != nil {
		r.fail(err)
		return err
	}
	return nil
}

// untilStopped returns a context that ends with a.ctx, or when the run stops, because after that no attempt may begin.
func (r *run) untilStopped(a *attempt) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	unregister := context.AfterFunc(r.running, func() { cancel(errStopped) })
	if r.running.Err() != nil {
		cancel(errStopped) // at once; AfterFunc calls its function a moment later
	}
	return ctx, func() {
		unregister()
		cancel(nil)
	}
}

// send waits for the interval and calls the gateway.
func (r *run) send(a *attempt) Result {
	if err := r.waitToSend(a); err != nil {
		return notSent(err)
	}
	ctx, cancel := context.WithTimeout(a.ctx, r.Timeout)
	defer cancel()
	results := make(chan Result, 1)
	go func() { results <- r.callGateway(ctx, messageOf(a.task)) }()
	select {
	case result := <-results:
		return result
	case <-ctx.Done():
	}
	select {
	case result := <-results:
		return result
	case <-time.After(lateReturnTime):
		r.Log.ErrorContext(ctx, "sender: the gateway did not return in time after its context ended", "task_id", a.task.TaskID)
		return Result{Message: "the gateway did not return"}
	}
}

func (r *run) waitToSend(a *attempt) error {
	ctx, cancel := r.untilStopped(a)
	defer cancel()
	return r.sendPace.wait(ctx)
}

// callGateway converts a panic of the gateway to an unknown outcome.
func (r *run) callGateway(ctx context.Context, m Message) (result Result) {
	defer func() {
		if p := recover(); p != nil {
			r.Log.ErrorContext(ctx, "sender: the gateway panicked", "task_id", m.TaskID, "panic", p, "stack", string(debug.Stack()))
			result = Result{Message: fmt.Sprintf("the gateway panicked: %v", p)}
		}
	}()
	return r.Gateway.Send(ctx, m)
}

// finish writes a result to the journal and queues its report.
func (r *run) finish(a *attempt, result Result) {
	if result.Outcome == Released {
		r.markPace.delay(min(result.RetryAfter, maxDelay))
	}
	r.Log.DebugContext(r.running, LogSent, "task_id", a.task.TaskID, "phone", mask(a.task.PhoneNumber),
		"outcome", result.Outcome.String(), "code", result.Code, "message", result.Message)
	report := reportOf(a.task, result, time.Now())
	if err := r.journal.put(report); err != nil {
		r.fail(err)
	}
	r.reporter.add(pendingReport{report: report, journaled: true, done: a.done})
}
