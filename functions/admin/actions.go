package admin

import (
	"context"
	"encoding/json"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/task"
)

type actionsRequest api.ActionsRequest

func (r *actionsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	bad.AtMost("subject", r.Subject, 100)
	return bad
}

func (h *handlers) actions(ctx context.Context, c *fn.Call, req actionsRequest) (any, error) {
	rows, more, err := h.env.Admin.Actions(ctx, req.Subject, int64(req.After), decode.PageLimit(req.Limit))
	if !c.May(fn.Admin) {
		for i := range rows {
			rows[i].Before, rows[i].After = task.MaskURLFields(rows[i].Before), task.MaskURLFields(rows[i].After)
			if rows[i].Action == "dead_letter.dismiss" {
				rows[i].Before = withoutEvent(rows[i].Before)
			}
		}
	}
	return fn.PageOf(rows, more, actionResponse, func(a admin.Action) int64 { return a.ID }), err
}

// withoutEvent returns the "before" of a dead_letter.dismiss entry without the event, which may have URLs of other callers that
// MaskURLFields does not mask.
func withoutEvent(before json.RawMessage) json.RawMessage {
	var fields map[string]any
	_ = json.Unmarshal(before, &fields) // valid: the column is jsonb
	delete(fields, "event")
	return json.RawMessage(store.MustJSON(fields))
}

func actionResponse(a admin.Action) api.ActionResponse {
	return api.ActionResponse{
		ID: api.ID(a.ID), At: a.CreatedAt.UTC(), CallerID: api.ID(a.CallerID), CallerName: a.CallerName, RequestID: a.RequestID,
		Action: a.Action, Subject: a.Subject, Reason: a.Reason, Before: a.Before, After: a.After,
	}
}
