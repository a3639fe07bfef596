package messages

import (
	"context"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxBulk   = 500                  // messages in one bulk change, which is one transaction
	maxReason = 500                  // characters
	maxAge    = 10 * 366 * 24 * 3600 // highest older_than_seconds: ten years
	kindRule  = "must be sending or sent"
)

type stuckRequest api.StuckRequest

func (r *stuckRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(!isStuckKind(r.Kind), "kind", "is required: it "+kindRule)
	bad.PageByID(r.Limit, r.After)
	checkAge(&bad, r.OlderThanSeconds)
	return bad
}

func isStuckKind(kind string) bool {
	return kind == message.Sending.String() || kind == message.Sent.String()
}

func checkAge(bad *decode.BadFields, seconds int64) {
	bad.When(seconds < 0 || seconds > maxAge, "older_than_seconds", fmt.Sprintf("must be between 0 and %d", maxAge))
}

// checkIDs checks a list of 1 to maxIDs ids of messages.
func checkIDs(bad *decode.BadFields, ids []string, maxIDs int) {
	bad.When(len(ids) < 1 || len(ids) > maxIDs, "ids", fmt.Sprintf("must hold 1 to %d ids", maxIDs))
	for i, id := range ids {
		_, err := task.ParseID(id)
		bad.When(err != nil, fmt.Sprintf("ids[%d]", i), "must be a server_msg_id")
	}
}

func (h *handlers) stuck(ctx context.Context, c *fn.Call, req stuckRequest) (any, error) {
	status, _ := message.ParseStatus(req.Kind)
	after, _ := task.ParseID(req.After) // valid, or absent and zero
	found, more, err := h.env.Messages.ListStuck(ctx, status, time.Duration(req.OlderThanSeconds)*time.Second, after, decode.PageLimit(req.Limit))
	return pageOf(c, found, more), err
}

type redriveRequest api.RedriveRequest

func (r *redriveRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.AtMost("reason", r.Reason, maxReason)
	return bad
}

type abandonRequest api.AbandonRequest

func (r *abandonRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("reason", r.Reason, maxReason)
	return bad
}

func (h *handlers) redrive(ctx context.Context, c *fn.Call, id task.ID, req redriveRequest) (any, error) {
	m, err := h.env.Messages.Redrive(ctx, id, c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.env.WakeForMessage(m.Kind)
	return messageResponse(c, m), nil
}

func (h *handlers) abandon(ctx context.Context, c *fn.Call, id task.ID, req abandonRequest) (any, error) {
	m, err := h.env.Messages.Abandon(ctx, id, c.AsOperator(req.Reason))
	return messageResponse(c, m), err
}

type (
	redriveStuckRequest api.MessageBulkRequest
	abandonStuckRequest api.MessageBulkRequest
)

func (r *redriveStuckRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(r.Kind != "" && !isStuckKind(r.Kind), "kind", kindRule)
	bad.When(r.Kind == "" && r.IDs == nil, "kind", "is required unless ids are given: it "+kindRule)
	if r.IDs != nil {
		checkIDs(&bad, r.IDs, maxBulk)
	}
	checkAge(&bad, r.OlderThanSeconds)
	bad.Between("limit", r.Limit, 1, maxBulk)
	bad.AtMost("reason", r.Reason, maxReason)
	return bad
}

func (r *abandonStuckRequest) Validate() []task.Field {
	bad := decode.BadFields((*redriveStuckRequest)(r).Validate())
	bad.When(r.Reason == "", "reason", "is required")
	return bad
}

func (h *handlers) redriveStuck(ctx context.Context, c *fn.Call, req redriveStuckRequest) (any, error) {
	return h.changeStuck(ctx, c, api.MessageBulkRequest(req), h.env.Messages.RedriveStuck)
}

func (h *handlers) abandonStuck(ctx context.Context, c *fn.Call, req abandonStuckRequest) (any, error) {
	return h.changeStuck(ctx, c, api.MessageBulkRequest(req), h.env.Messages.AbandonStuck)
}

// changeStuck counts the stuck messages that the request selects. Then it changes at most Limit of them, unless the request is a
// dry run.
func (h *handlers) changeStuck(ctx context.Context, c *fn.Call, req api.MessageBulkRequest,
	change func(context.Context, messages.StuckFilter, int, store.Operator) (int, error)) (any, error) {
	filter := messages.StuckFilter{OlderThan: time.Duration(req.OlderThanSeconds) * time.Second}
	if status, known := message.ParseStatus(req.Kind); known {
		filter.Status = &status
	}
	for _, text := range req.IDs {
		id, _ := task.ParseID(text) // valid
		filter.IDs = append(filter.IDs, id)
	}
	matched, err := h.env.Messages.CountStuck(ctx, filter)
	if err != nil || req.DryRun {
		return api.MessageBulkResponse{Matched: matched}, err
	}
	changed, err := change(ctx, filter, decode.ValueOr(req.Limit, maxBulk), c.AsOperator(req.Reason))
	if changed > 0 {
		h.env.WakeForMessage(message.Subject)
		h.env.WakeForMessage(message.URL)
	}
	return api.MessageBulkResponse{Matched: matched, Changed: changed}, err
}
