package admin

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxCallerIDs = 200 // in one request
	builtInAdmin = 0   // the id of the built-in admin, which has no row in the table of callers
)

type callerNamesRequest api.CallerNamesRequest

func (r *callerNamesRequest) Validate() []task.Field {
	var bad decode.BadFields
	_, ok := r.ids()
	bad.When(!ok, "ids", "must be 1 to 200 ids of callers, separated by commas")
	bad.When((r.IDs == "") == (r.Name == ""), "ids", "give either ids or name, not both")
	bad.User("name", r.Name)
	return bad
}

// ids returns the list of ids. ok is false if the list is malformed or too long.
func (r *callerNamesRequest) ids() (ids []int64, ok bool) {
	if r.IDs == "" {
		return nil, true
	}
	for text := range strings.SplitSeq(r.IDs, ",") {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 0 || len(ids) == maxCallerIDs {
			return nil, false
		}
		ids = append(ids, id)
	}
	return ids, true
}

// callerNames returns those of the requested callers that exist, revoked or not. An admin or viewer with queues gets only the callers
// that it manages (see limitedOperator), and never the built-in admin.
func (h *handlers) callerNames(ctx context.Context, c *fn.Call, req callerNamesRequest) (any, error) {
	ids, _ := req.ids() // Validate has checked it
	rows, err := h.env.Callers.Named(ctx, ids, req.Name)
	response := api.CallerNamesResponse{Callers: []api.NamedCaller{}}
	if (req.Name == h.env.Config.Username || slices.Contains(ids, builtInAdmin)) && !c.LimitedToQueues() {
		response.Callers = append(response.Callers, api.NamedCaller{Name: h.env.Config.Username})
	}
	for _, row := range rows {
		if limitedOperator(c).Manages(row) {
			response.Callers = append(response.Callers, api.NamedCaller{ID: api.ID(row.ID), Name: row.Name})
		}
	}
	return response, err
}
