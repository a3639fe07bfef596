package subscribe

import (
	"context"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

type handlers struct {
	env        *fn.Env
	maxRetries int
	lease      time.Duration
}

const (
	root         = "/api/v1/subscribe/"
	resourceName = "subscribe message" // what error texts call the resource that {id} identifies
)

func checkQueue(c *fn.Call, queue string) error {
	if c.MayUseQueue(queue) {
		return nil
	}
	return task.Refuse(task.CodeForbidden, "this caller may not submit to queue "+queue)
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

// hidesOthers reports whether requests of the caller for another caller's message are refused, whatever the state of the message:
// this is so if the caller has a list of business types. An admin has no such list.
func hidesOthers(c *fn.Call) bool { return len(c.Caller.BusinessTypes) > 0 }

// readableMessage returns the message of the path. The error is not_found for another caller's message, unless the
// caller is an admin or a viewer that is not limited to queues.
func (h *handlers) readableMessage(ctx context.Context, c *fn.Call) (subscribe.Log, error) {
	id, err := fn.RowID[int64](c, resourceName)
	if err != nil {
		return subscribe.Log{}, err
	}
	l, err := h.env.Subscribe.LogByID(ctx, id)
	if err == nil && l.CallerID != c.Caller.ID && !c.ReadsAll() {
		return subscribe.Log{}, noMessage()
	}
	return l, err
}

func noMessage() error { return task.Refuse(task.CodeNotFound, "no such "+resourceName) }
