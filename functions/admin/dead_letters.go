package admin

import (
	"context"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

func (h *handlers) deadLetters(ctx context.Context, c *fn.Call, req listRequest) (any, error) {
	rows, more, err := h.env.Admin.DeadLetters(ctx, int64(req.After), decode.PageLimit(req.Limit))
	if c.SeesOnlyHosts() {
		for i := range rows {
			rows[i].Event = "" // an event may have whole URLs of other callers
		}
	}
	return fn.PageOf(rows, more, deadLetterResponse, func(l store.DeadLetter) int64 { return l.ID }), err
}

func (h *handlers) dismiss(ctx context.Context, c *fn.Call, id int64, req requiredReason) (any, error) {
	c.Status(http.StatusNoContent)
	return nil, h.env.Admin.DismissDeadLetter(ctx, id, c.AsOperator(req.Reason))
}

func deadLetterResponse(l store.DeadLetter) api.DeadLetterResponse {
	return api.DeadLetterResponse{
		ID: api.ID(l.ID), Function: l.Function, EventID: l.EventID, EventType: l.EventType, Event: l.Event,
		Reason: l.Reason, Attempts: l.Attempts, CreatedAt: l.CreatedAt.UTC(),
	}
}
