package admin

import (
	"context"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/task"
)

type alertsRequest api.AlertsRequest

func (r *alertsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	_, ok := parseAlertCursor(r.After)
	bad.AfterIsValid(ok)
	return bad
}

// The two parts of the list, open alerts first. A cursor has the last alert of a page and the part in which the page listed it. So the
// next page continues in the same part, even if the alert was cleared meanwhile.
const (
	openAlerts    = "open"
	clearedAlerts = "cleared"
)

func alertCursor(a alerts.Alert) string {
	if a.ClearedAt == nil {
		return openAlerts + "." + a.ID.String()
	}
	return clearedAlerts + "." + a.ID.String()
}

func parseAlertCursor(text string) (alerts.Cursor, bool) {
	if text == "" {
		return alerts.Cursor{}, true
	}
	part, id, _ := strings.Cut(text, ".")
	alertID, err := task.ParseID(id)
	return alerts.Cursor{Open: part == openAlerts, ID: alertID}, err == nil && (part == openAlerts || part == clearedAlerts)
}

func (h *handlers) alerts(ctx context.Context, c *fn.Call, req alertsRequest) (any, error) {
	after, _ := parseAlertCursor(req.After) // Validate has checked it
	rows, more, err := h.env.Alerts.List(ctx, c.Caller.Queues, after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, alertResponse, alertCursor), err
}

func alertResponse(a alerts.Alert) api.AlertResponse {
	return api.AlertResponse{
		ID: a.ID.String(), Kind: string(a.Kind), Queue: a.Queue, Value: a.Value, Threshold: a.Threshold,
		Since: a.Since.UTC(), ClearedAt: fn.UTC(a.ClearedAt), ClearedValue: a.ClearedValue,
	}
}
