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

// attempt is a claimed task on its way to a report.
type attempt struct {
	task  api.ClaimedTask
	ctx   context.Context // ends when the claim or the grace period does
	lose  context.CancelCauseFunc
	life  context.Context // ends when the attempt needs its lease no more
	over  func()
	lapse *time.Timer // loses the claim when its lease is nearly over
}

var (
	errLost    = errors.New("the claim is no longer this sender's")
	errLapsed  = errors.New("the lease could not be extended in time")
	errStopped = errors.New("the sender is stopping")
)

// take holds the lease of a task until its attempt is over.
func (r *run) take(t api.ClaimedTask) *attempt {
	a := &attempt{task: t}
	a.ctx, a.lose = context.WithCancelCause(r.sending)
	life, end := context.WithCancel(context.WithoutCancel(r.running))
	a.life, a.over = life, func() {
		end()
		r.hand <- struct{}{}
	}
	a.lapse = time.AfterFunc(r.safely(), func() { a.lose(errLapsed) })
	r.leases.Go(func() { r.keep(a) })
	return a
}

// safely is how much of a lease may be used: what is under way shall end before
// the server gives the task to somebody else.
func (r *run) safely() time.Duration { return r.Lease * 9 / 10 }

// keep extends the lease until the attempt is over or the claim is lost.
func (r *run) keep(a *attempt) {
	defer a.lapse.Stop()
	defer a.lose(nil)
	tick := time.NewTicker(r.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.life.Done():
			return
		}
		ctx, cancel := context.WithTimeout(a.life, r.Lease/3)
		err := r.extend(ctx, a, false)
		cancel()
		if errors.Is(err, errLost) {
			a.lose(err)
			<-a.life.Done()
			return
		}
		if err != nil && a.life.Err() == nil {
			r.Log.WarnContext(ctx, "sender: lease not extended", "task_id", a.task.TaskID, "error", err)
		}
	}
}

// extend gives errLost when the server says that the claim is not ours.
func (r *run) extend(ctx context.Context, a *attempt, sending bool) error {
	asked := time.Now() // the server counts from later on
	_, err := r.Client.Extend(ctx, a.task.TaskID, api.ExtendRequest{
		AppID: r.AppID, ClaimID: a.task.ClaimID, LeaseSeconds: &r.lease, Sending: sending,
	})
	if err == nil {
		a.lapse.Reset(time.Until(asked.Add(r.safely())))
		return nil
	}
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code != "" && (refused.Status == http.StatusConflict || refused.Status == http.StatusNotFound) {
		return errLost
	}
	return err
}

// carry brings a task from its claim to a report.
func (r *run) carry(a *attempt) {
	err := r.prepare(a)
	if errors.Is(err, errLost) { // nobody asks for our word any more
		r.Log.WarnContext(a.life, "sender: not sent", "task_id", a.task.TaskID, "error", err)
		a.over()
		return
	}
	if err != nil {
		r.reporter.add(pending{report: reportOf(a.task, notSent(err), time.Now()), over: a.over})
		return
	}
	r.conclude(a, r.send(a))
}

// prepare does all that comes before a send. Once it has returned nil the
// attempt is in the journal as unknown, and the server knows that it begins.
func (r *run) prepare(a *attempt) error {
	ctx, cancel := r.unlessStopped(a)
	defer cancel()
	if err := r.early.wait(ctx); err != nil {
		return err
	}
	if err := r.extend(ctx, a, true); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, errLost) {
			r.Log.WarnContext(ctx, "sender: not marked as sending", "task_id", a.task.TaskID, "error", err)
			r.early.hold(time.Second)
		}
		return err
	}
	if err := r.journal.put(reportOf(a.task, Result{Message: "the sender ended while it was sending"}, time.Time{})); err != nil {
		r.fail(err)
		return err
	}
	return nil
}

// unlessStopped is the ctx of what need not be done when nothing more is begun.
func (r *run) unlessStopped(a *attempt) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	forget := context.AfterFunc(r.running, func() { cancel(errStopped) })
	if r.running.Err() != nil {
		cancel(errStopped) // now, where AfterFunc would take its time
	}
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// send gives the message to the gateway, at its time.
func (r *run) send(a *attempt) Result {
	if err := r.pass(a); err != nil {
		return notSent(err)
	}
	ctx, cancel := context.WithTimeout(a.ctx, r.Timeout)
	defer cancel()
	results := make(chan Result, 1)
	go func() { results <- r.try(ctx, messageOf(a.task)) }()
	select {
	case result := <-results:
		return result
	case <-ctx.Done():
	}
	late := time.NewTimer(lateLimit)
	defer late.Stop()
	select {
	case result := <-results:
		return result
	case <-late.C:
		r.Log.ErrorContext(ctx, "sender: the gateway did not return when its time was over", "task_id", a.task.TaskID)
		return Result{Message: "the gateway did not return"}
	}
}

func (r *run) pass(a *attempt) error {
	ctx, cancel := r.unlessStopped(a)
	defer cancel()
	return r.gate.wait(ctx)
}

func notSent(why error) Result {
	return Result{Outcome: Released, Message: "not sent: " + why.Error()}
}

// try makes a panic of the gateway an unknown outcome.
func (r *run) try(ctx context.Context, m Message) (result Result) {
	defer func() {
		if p := recover(); p != nil {
			r.Log.ErrorContext(ctx, "sender: the gateway panicked", "task_id", m.TaskID, "panic", p, "stack", string(debug.Stack()))
			result = Result{Message: fmt.Sprintf("the gateway panicked: %v", p)}
		}
	}()
	return r.Gateway.Send(ctx, m)
}

// conclude puts a result on disk and has it reported.
func (r *run) conclude(a *attempt, result Result) {
	if result.Outcome == Released {
		r.early.hold(min(result.RetryAfter, longestHold))
	}
	r.Log.DebugContext(r.running, LogSent, "task_id", a.task.TaskID, "phone", mask(a.task.PhoneNumber),
		"outcome", result.Outcome.String(), "code", result.Code, "message", result.Message)
	report := reportOf(a.task, result, time.Now())
	if err := r.journal.put(report); err != nil {
		r.fail(err)
	}
	r.reporter.add(pending{report: report, journaled: true, over: a.over})
}
