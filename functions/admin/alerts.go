package admin

import (
	"context"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// alertsRequest is api.AlertsRequest with its rules.
type alertsRequest api.AlertsRequest

// Validate names every field whose value is not acceptable.
func (r *alertsRequest) Validate() []task.Field {
	var bad rules
	bad.Page(r.Limit)
	_, ok := parsePlace(r.After)
	bad.After(ok)
	return bad.Rules
}

// The parts of the list, as they begin a place in it: an alert that is cleared
// while somebody pages moves from one to the other.
const (
	openPart    = "open"
	clearedPart = "cleared"
)

func placeOf(a store.Alert) string {
	if a.ClearedAt == nil {
		return openPart + "." + a.ID.String()
	}
	return clearedPart + "." + a.ID.String()
}

func parsePlace(text string) (store.AlertPlace, bool) {
	if text == "" {
		return store.AlertPlace{}, true
	}
	part, id, _ := strings.Cut(text, ".")
	at, err := task.ParseID(id)
	return store.AlertPlace{Open: part == openPart, ID: at}, err == nil && (part == openPart || part == clearedPart)
}

func (d *desk) alerts(ctx context.Context, c *fn.Call, req alertsRequest) (any, error) {
	after, _ := parsePlace(req.After) // valid
	rows, more, err := d.db.Alerts(ctx, c.Caller.Queues, after, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, alertResponse, placeOf), err
}

func alertResponse(a store.Alert) api.AlertResponse {
	return api.AlertResponse{
		ID: a.ID.String(), Kind: string(a.Kind), Queue: a.Queue, Value: a.Value, Threshold: a.Threshold,
		Since: a.Since.UTC(), ClearedAt: fn.UTC(a.ClearedAt), ClearedValue: a.ClearedValue,
	}
}
