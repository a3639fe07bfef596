package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

const maxTemplateIDChars = 100

type subscribeTemplatesRequest api.SubscribeTemplatesRequest

func (r *subscribeTemplatesRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	_, ok := parseTemplateCursor(r.After)
	bad.AfterIsValid(ok)
	return bad
}

// templateCursor returns the next_after of a page: paused_at.caller_id.template_id. paused_at is in microseconds, or empty if the
// template is not paused. template_id comes last because it may contain dots.
func templateCursor(t subscribe.Template) string {
	at := ""
	if t.PausedAt != nil {
		at = strconv.FormatInt(t.PausedAt.UnixMicro(), 10)
	}
	return fmt.Sprintf("%s.%d.%s", at, t.CallerID, t.TemplateID)
}

func parseTemplateCursor(text string) (cursor subscribe.TemplateCursor, ok bool) {
	if text == "" {
		return cursor, true
	}
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 3 || parts[2] == "" || !validTemplateID(parts[2]) {
		return cursor, false
	}
	cursor.TemplateID = parts[2]
	if parts[0] != "" {
		at, ok := decode.ParseMicros(parts[0])
		if !ok {
			return cursor, false
		}
		cursor.PausedAt = &at
	}
	var err error
	cursor.CallerID, err = strconv.ParseInt(parts[1], 10, 64)
	return cursor, err == nil
}

func validTemplateID(id string) bool {
	return utf8.ValidString(id) && !strings.ContainsRune(id, 0) && utf8.RuneCountInString(id) <= maxTemplateIDChars
}

// subscribeTemplates lists the templates with strikes (consecutive errors). Strikes are counted for each caller, so a template has an
// item for each caller with strikes. Paused templates come first, then those with too few strikes for a pause. All of them belong to
// the queue wechat.
func (h *handlers) subscribeTemplates(ctx context.Context, c *fn.Call, req subscribeTemplatesRequest) (any, error) {
	if !c.MayUseQueue(task.WeChatQueue) {
		return nil, errForbiddenQueue(task.WeChatQueue)
	}
	after, _ := parseTemplateCursor(req.After) // Validate has checked it
	templates, more, err := h.env.Subscribe.Templates(ctx, after, decode.PageLimit(req.Limit))
	page := fn.PageOf(templates, more, func(t subscribe.Template) api.SubscribeTemplate { return h.subscribeTemplateResponse(c, t) }, templateCursor)
	return api.SubscribeTemplatesResponse{Templates: page.Items, NextAfter: page.NextAfter}, err
}

func (h *handlers) subscribeTemplateResponse(c *fn.Call, t subscribe.Template) api.SubscribeTemplate {
	response := api.SubscribeTemplate{
		TemplateID: t.TemplateID, CallerID: api.ID(t.CallerID), Strikes: t.Strikes, PausedAt: fn.UTC(t.PausedAt), Reason: t.Reason, UpdatedAt: t.UpdatedAt.UTC(),
	}
	switch {
	case c.LimitedToQueues(): // no name; the route callers/names returns the names of the callers that a limited operator manages
	case t.CallerID == builtInAdmin:
		response.CallerName = h.env.Config.Username
	default:
		response.CallerName = t.CallerName
	}
	return response
}

type resumeSubscribeTemplateRequest api.ResumeTemplateRequest

func (r *resumeSubscribeTemplateRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("reason", r.Reason, maxReasonLength)
	return bad
}

func (h *handlers) resumeSubscribeTemplate(ctx context.Context, c *fn.Call, req resumeSubscribeTemplateRequest) (any, error) {
	if !c.MayUseQueue(task.WeChatQueue) {
		return nil, errForbiddenQueue(task.WeChatQueue)
	}
	id := c.PathValue("template_id")
	if !validTemplateID(id) {
		return nil, task.Refuse(task.CodeNotFound, "no such paused template")
	}
	released, err := h.env.Subscribe.ResumeTemplate(ctx, id, (*int64)(req.CallerID), c.AsOperator(req.Reason))
	if err != nil {
		return nil, err
	}
	h.env.WakeSweepAt(time.Now())
	return api.ResumeTemplateResponse{TemplateID: id, DueTasks: released}, nil
}
