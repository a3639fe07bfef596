package fn

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// How a revocation takes effect. A change of a caller is published to NATS. Every process that is
// connected to NATS (bus.OnCallerChanged) then forgets the caller, and reads it from the database when it is
// next needed. Without NATS, or if a message is lost, a cached caller expires after auth.CallerTTL. The
// caller is checked again
//
//   - by each call with a body, when the body has arrived,
//   - by a poll before it claims,
//   - by a stream or socket before each event and every recheckInterval,
//   - by a socket before it handles a frame,
//   - by polls, streams and sockets as soon as their process has received a change.
const (
	recheckInterval = 10 * time.Second
	recheckRetry    = time.Second // between two tries while the database is unavailable
	publishTimeout  = time.Second // how long the response to an operator waits for NATS
)

// CallersChanged makes every process read these callers from the database again. Call it after the
// commit that changed the callers. This process and those that are connected to NATS use the old state
// no longer, other processes for at most 60 s. An empty name is ignored.
func (e *Env) CallersChanged(ctx context.Context, names ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	for _, name := range names {
		if name != "" {
			e.auth.Callers.Forget(name)
			e.bus.NotifyCallerChanged(ctx, name)
		}
	}
}

// watchCallers subscribes to changes of callers. It is called when the first caller was read, not at the
// start, so that the start does not wait for NATS, and calls of the built-in admin do not need NATS.
func (e *Env) watchCallers() {
	e.subscribeCallers.Do(func() { e.bus.OnCallerChanged(e.auth.Callers.Forget, e.auth.Callers.ForgetAll) })
}

// currentCaller returns the present state of the caller of a call that has begun; was is the state that the
// call has used so far. changed is closed when the caller may have changed again; it is nil for the built-in admin,
// who never changes. The error has the code auth.CodeUnauthenticated if the caller was revoked or its
// token replaced, and task.CodeServerBusy if the database is unavailable.
func (e *Env) currentCaller(ctx context.Context, was callers.Caller) (now callers.Caller, changed <-chan struct{}, err error) {
	if was.ID == 0 {
		return was, nil, nil
	}
	now, changed, err = e.auth.Callers.Current(ctx, was.Name)
	switch {
	case err == nil && !now.Revoked && bytes.Equal(now.Proof, was.Proof):
		return now, changed, nil
	case err != nil && task.CodeOf(err) != task.CodeNotFound:
		return was, nil, errors.Join(task.Busy("the service is busy, try again"), err)
	}
	return was, nil, task.Refuse(auth.CodeUnauthenticated, "the caller was revoked or its token replaced")
}

// Recheck sets c.Caller to the present state of the caller. The handler of a call that has waited must
// call Recheck before it acts. The error has the code that a new call would get. changed is closed when
// the caller may have changed again.
func (c *Call) Recheck(ctx context.Context) (changed <-chan struct{}, err error) {
	now, changed, err := c.env.currentCaller(ctx, c.Caller)
	if err != nil {
		return nil, err
	}
	c.Caller = now
	return changed, c.checkRole()
}

// checkRole returns an error if the caller may not call the route: it has none of the route's roles, or it
// is limited to queues on a route for admins that is not WithinQueues.
func (c *Call) checkRole() error {
	limited := slices.Contains(c.roles, Admin) && c.LimitedToQueues()
	switch {
	case limited && c.withinQueues && slices.ContainsFunc(c.roles, c.HasRole):
		return nil
	case limited && c.HasRole(Admin):
		return task.Refuse(task.CodeForbidden, "this concerns more than the queues to which this admin is limited: "+strings.Join(c.Caller.Queues, ", "))
	case limited || !slices.ContainsFunc(c.roles, c.May):
		return task.Refuse(task.CodeForbidden, "this needs the role "+roleList(c.roles))
	}
	return nil
}

// recheckCaller returns an error if the caller of a stream was changed in any way since the stream began.
// The stream must then end, so that its client reconnects and is authenticated again. isRefusal is false
// for an error of the database.
func (req *request) recheckCaller(ctx context.Context) (changed <-chan struct{}, err error) {
	now, changed, err := req.env.currentCaller(ctx, req.call.Caller)
	if err == nil && !reflect.DeepEqual(now, req.call.Caller) {
		err = task.Refuse(task.CodeForbidden, "what this caller may do was changed: connect again at once")
	}
	return changed, err
}

// confirmUnchanged returns nil if the caller of a stream was not changed since the stream began. If it was changed,
// confirmUnchanged ends the stream with cancel and returns an error. While the caller must be read and
// the database is unavailable, confirmUnchanged waits: the caller may have been revoked.
func (req *request) confirmUnchanged(ctx context.Context, cancel context.CancelCauseFunc) error {
	for {
		_, err := req.recheckCaller(ctx)
		if isRefusal(err) {
			cancel(err)
		}
		if err == nil || isRefusal(err) {
			return err
		}
		select {
		case <-time.After(recheckRetry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isRefusal reports whether err refuses the caller, as opposed to an outage of the database.
func isRefusal(err error) bool {
	code := task.CodeOf(err)
	return code == auth.CodeUnauthenticated || code == task.CodeForbidden
}

// whileUnchanged returns a context that ends with ctx, when the process drains, or when the caller of the
// stream was revoked or changed. If the caller was, the cause of the context is the refusal.
func (req *request) whileUnchanged(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(recheckInterval)
		defer tick.Stop()
		for {
			changed, err := req.recheckCaller(ctx)
			if isRefusal(err) {
				cancel(err)
				return
			}
			select {
			case <-changed:
			case <-tick.C:
			case <-req.env.Draining():
				cancel(nil)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// revocationOf returns the refusal that ended the context of a stream; nil = no refusal ended it.
func revocationOf(ctx context.Context) error {
	if err := context.Cause(ctx); isRefusal(err) {
		return err
	}
	return nil
}
