package admin

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/task"
)

// Default content (default-sms in paths) is stored for a phone number. The next submission to this number without content of its own
// uses the default content. After that, the default content is not used again until it is reset.

type defaultRequest api.DefaultSMSRequest

func (r *defaultRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Phone(r.PhoneNumber)
	checkDefaultContent(&bad, r.Content, r.UseTemplate)
	return bad
}

// checkDefaultContent checks the content. With useTemplate the content is the parameters of a template. The rendered text is not
// checked, because the template may change before the message is sent.
func checkDefaultContent(bad *decode.BadFields, content string, useTemplate bool) {
	bad.When(!useTemplate && strings.TrimSpace(content) == "", "content", "is required: 1 to 200 characters, not only white space")
	bad.When(utf8.RuneCountInString(content) > task.MaxContent, "content", "must be at most 200 characters")
	if useTemplate {
		if _, err := task.ParseParams(content); err != nil {
			bad.When(true, "content", "must be URL-encoded parameters, as use_template is true: "+err.Error())
		}
	}
}

func (h *handlers) addDefault(ctx context.Context, c *fn.Call, req defaultRequest) (any, error) {
	row, err := h.env.Admin.AddDefault(ctx, h.phone(req.PhoneNumber), req.Content, req.UseTemplate, c.AsOperator(""))
	return defaultResponse(row), err
}

// phone returns a phone number in the form in which it is stored, or "" if text is not a phone number.
func (h *handlers) phone(text string) string {
	number, _ := h.env.Config.PhoneCountry.Phone(text)
	return number
}

type defaultsRequest api.DefaultSMSListRequest

func (r *defaultsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	bad.PhoneParameter(r.PhoneNumber)
	return bad
}

func (h *handlers) defaults(ctx context.Context, _ *fn.Call, req defaultsRequest) (any, error) {
	rows, more, err := h.env.Admin.Defaults(ctx, h.phone(req.PhoneNumber), req.IsSent, int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, defaultResponse, func(row admin.DefaultSMS) int32 { return row.ID }), err
}

func (h *handlers) defaultSMS(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	row, err := h.env.Admin.Default(ctx, id)
	return defaultResponse(row), err
}

// defaultChange does not validate the content. The rules for the content depend on use_template, which the request may leave out.
// editDefault validates the content with the stored use_template.
type defaultChange api.DefaultSMSChange

func (r *defaultChange) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(*r == defaultChange{}, "body", "must give content or use_template")
	return bad
}

func (h *handlers) editDefault(ctx context.Context, c *fn.Call, id int32, req defaultChange) (any, error) {
	return h.changeDefault(ctx, c, id, func(row *admin.DefaultSMS) error {
		setIfGiven(&row.Content, req.Content)
		setIfGiven(&row.UseTemplate, req.UseTemplate)
		var bad decode.BadFields
		checkDefaultContent(&bad, row.Content, row.UseTemplate)
		if len(bad) > 0 {
			return task.Invalid(bad)
		}
		return nil
	})
}

func (h *handlers) resetDefault(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	return h.changeDefault(ctx, c, id, func(row *admin.DefaultSMS) error {
		row.Sent = false
		return nil
	})
}

func (h *handlers) changeDefault(ctx context.Context, c *fn.Call, id int32, edit func(*admin.DefaultSMS) error) (any, error) {
	row, err := h.env.Admin.EditDefault(ctx, id, c.AsOperator(""), edit)
	return defaultResponse(row), err
}

func (h *handlers) deleteDefault(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	row, err := h.env.Admin.DeleteDefault(ctx, id, c.AsOperator(""))
	return defaultResponse(row), err
}

func defaultResponse(row admin.DefaultSMS) api.DefaultSMSResponse {
	return api.DefaultSMSResponse{
		ID: api.ID(row.ID), PhoneNumber: row.Phone, Content: row.Content, UseTemplate: row.UseTemplate, IsSent: row.Sent,
		CreatedAt: row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(),
	}
}
