package admin

import (
	"context"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/task"
)

const maxBlockedWordLength = 100

type blockedWordRequest api.BlockedWordRequest

func (r *blockedWordRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("word", r.Word, maxBlockedWordLength)
	return bad
}

func (h *handlers) addBlockedWord(ctx context.Context, c *fn.Call, req blockedWordRequest) (any, error) {
	w, err := h.env.Admin.AddBlockedWord(ctx, req.Word, c.AsOperator(""))
	return blockedWordResponse(w), err
}

func (h *handlers) removeBlockedWord(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	w, err := h.env.Admin.RemoveBlockedWord(ctx, id, c.AsOperator(""))
	return blockedWordResponse(w), err
}

func (h *handlers) blockedWords(ctx context.Context, _ *fn.Call, req listRequest) (any, error) {
	rows, more, err := h.env.Admin.BlockedWords(ctx, int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, blockedWordResponse, func(w admin.BlockedWord) int32 { return w.ID }), err
}

func blockedWordResponse(w admin.BlockedWord) api.BlockedWordResponse {
	return api.BlockedWordResponse{ID: api.ID(w.ID), Word: w.Word, CreatedAt: w.CreatedAt.UTC()}
}
