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

// How a revoked caller is shut out. A change of a caller is published to every
// process that is connected to NATS (bus.OnCaller), which then looks the caller
// up anew. Without NATS, and for what NATS lost, auth.CallerTTL ends what is remembered.
// Calls that last look again themselves: any call after its body has arrived, a stream or
// socket before each event and every recheckInterval, a poll before it claims, and streams,
// sockets and polls as soon as their process learns of a change.
const (
	recheckInterval = 10 * time.Second
	recheckRetry    = time.Second // when the database was unavailable
	publishTimeout  = time.Second // what the response to an operator waits for NATS at most
)

// CallersChanged makes every process look these callers up anew: call it after the
// commit that changed them. Processes that are connected to NATS do so at once, others
// within 60 s. An empty name, of a change that failed, is ignored.
func (e *Env) CallersChanged(ctx context.Context, names ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	for _, name := range names {
		if name != "" {
			e.auth.Callers.Forget(name)
			e.bus.NotifyCaller(ctx, name)
		}
	}
}

// watchCallers subscribes to changes of callers, once there is a caller to forget:
// connecting to NATS costs a start nothing, and an admin's calls need it not at all.
func (e *Env) watchCallers() {
	e.subscribeCallers.Do(func() { e.bus.OnCaller(e.auth.Callers.Forget, e.auth.Callers.ForgetAll) })
}

// currentCaller is what a caller whose call has begun is now. changed is closed when
// that may have changed again; nil for the built-in admin, which stays as it is
// for as long as its process. The error is the refusal of a caller that was revoked or
// whose token was replaced, or returns an error if the database is unavailable.
func (e *Env) currentCaller(ctx context.Context, was callers.Caller) (now callers.Caller, changed <-chan struct{}, err error) {
	if was.ID == 0 {
		return was, nil, nil
	}
	now, changed, err = e.auth.Callers.Current(ctx, was.Name)
	switch {
	case err == nil && !now.Revoked && bytes.Equal(now.Proof, was.Proof):
		return now, changed, nil
	case err != nil && task.CodeOf(err) != task.CodeNotFound:
		return was, nil, errors.Join(Busy("the service is busy, try again"), err)
	}
	return was, nil, task.Refuse(auth.CodeUnauthenticated, "the caller was revoked or its token replaced")
}

// Recheck looks up the caller of a call that has waited again, before the call acts:
// c.Caller is then what the caller is now. The error is what the call would
// get if it were made now. changed is closed when it is time to look again.
func (c *Call) Recheck(ctx context.Context) (changed <-chan struct{}, err error) {
	now, changed, err := c.env.currentCaller(ctx, c.Caller)
	if err != nil {
		return nil, err
	}
	c.Caller = now
	return changed, c.admitted()
}

// admitted refuses a caller without any of the roles that the route asks for. What is
// for admins refuses everybody with queues, unless it is WithinQueues.
func (c *Call) admitted() error {
	limited := slices.Contains(c.roles, Admin) && c.HasQueues()
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

// recheckCaller holds a stream to the caller that began it: any change ends the
// stream, so that its client comes back and is judged anew. It returns nil while the caller
// is the same.
func (req *request) recheckCaller(ctx context.Context) (changed <-chan struct{}, err error) {
	now, changed, err := req.env.currentCaller(ctx, req.call.Caller)
	if err == nil && !reflect.DeepEqual(now, req.call.Caller) {
		err = task.Refuse(task.CodeForbidden, "what this caller may do was changed: come back at once")
	}
	return changed, err
}

// waitUntilAllowed returns nil once the caller of a stream was looked up and is the
// same; else it ends the stream. While the database is unavailable it waits, so that nothing is
// sent to a caller that may have been revoked.
func (req *request) waitUntilAllowed(ctx context.Context, cancel context.CancelCauseFunc) error {
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

// whileAdmitted ends ctx when the process drains, and when the caller is no
// longer the one that began the stream: the refusal is then its cause.
func (req *request) whileAdmitted(ctx context.Context) (context.Context, context.CancelCauseFunc) {
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

// revocationOf is the refusal that ended the context of a stream; nil when something
// else did.
func revocationOf(ctx context.Context) error {
	if err := context.Cause(ctx); isRefusal(err) {
		return err
	}
	return nil
}
