package webhooks

import (
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

type handlers struct{ env *fn.Env }

// changeScope returns the id of the caller whose endpoints and deliveries may be changed: the caller's own id, or nil (all callers)
// for an admin who is not limited to queues.
func changeScope(c *fn.Call) *int64 {
	if c.May(fn.Admin) {
		return nil
	}
	return &c.Caller.ID
}

// narrowScope narrows a scope to caller, the caller_id of the request. If caller is nil, the scope stays as it is. Unless the scope is
// nil (all callers), narrowScope refuses the id of another caller.
func narrowScope(c *fn.Call, caller, scope *int64) (*int64, error) {
	switch {
	case caller == nil:
		return scope, nil
	case scope == nil || *caller == c.Caller.ID:
		return caller, nil
	}
	return nil, task.Refuse(task.CodeForbidden, "this caller may not see the endpoints and deliveries of another caller")
}
