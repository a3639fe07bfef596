package admin

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const noDefault = "default content"

// defaultRequest is api.DefaultSMSRequest with its rules.
type defaultRequest api.DefaultSMSRequest

// Validate names every field whose value is not acceptable.
func (r *defaultRequest) Validate() []task.Field {
	var bad rules
	bad.Phone(r.PhoneNumber)
	bad.defaultContent(r.Content, r.UseTemplate)
	return bad.Rules
}

// defaultContent holds the text of a default to what its one submission will
// be able to send; what only the template of that day decides is left to it.
func (b *rules) defaultContent(content string, useTemplate bool) {
	b.When(!useTemplate && strings.TrimSpace(content) == "", "content", "is required: 1 to 200 characters, not only white space")
	b.When(utf8.RuneCountInString(content) > task.MaxContent, "content", "must be at most 200 characters")
	if useTemplate {
		if _, err := task.ParseParams(content); err != nil {
			b.When(true, "content", "must be URL-encoded parameters, as use_template is true: "+err.Error())
		}
	}
}

func (d *desk) addDefault(ctx context.Context, c *fn.Call, req defaultRequest) (any, error) {
	row, err := d.db.AddDefault(ctx, d.phone(req.PhoneNumber), req.Content, req.UseTemplate, c.Operator(""))
	return defaultResponse(row), err
}

// phone is the stored form of a valid number, "" for none.
func (d *desk) phone(text string) string {
	number, _ := d.phones.Phone(text)
	return number
}

// defaultsRequest is api.DefaultSMSListRequest with its rules.
type defaultsRequest api.DefaultSMSListRequest

// Validate names every field whose value is not acceptable.
func (r *defaultsRequest) Validate() []task.Field {
	var bad rules
	bad.Page(r.Limit)
	bad.PhoneParameter(r.PhoneNumber)
	return bad.Rules
}

func (d *desk) defaults(ctx context.Context, _ *fn.Call, req defaultsRequest) (any, error) {
	rows, more, err := d.db.Defaults(ctx, d.phone(req.PhoneNumber), req.IsSent, int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, defaultResponse, func(row store.DefaultSMS) int32 { return row.ID }), err
}

func (d *desk) defaultSMS(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := fn.RowID[int32](c, noDefault)
	if err != nil {
		return nil, err
	}
	row, err := d.db.Default(ctx, id)
	return defaultResponse(row), err
}

// defaultChange is api.DefaultSMSChange with its rules; the content is judged
// together with what is stored.
type defaultChange api.DefaultSMSChange

// Validate names every field whose value is not acceptable.
func (r *defaultChange) Validate() []task.Field {
	var bad rules
	bad.When(*r == defaultChange{}, "body", "must give content or use_template")
	return bad.Rules
}

func (d *desk) editDefault(ctx context.Context, c *fn.Call, req defaultChange) (any, error) {
	return d.changeDefault(ctx, c, func(row *store.DefaultSMS) error {
		replace(&row.Content, req.Content)
		replace(&row.UseTemplate, req.UseTemplate)
		var bad rules
		bad.defaultContent(row.Content, row.UseTemplate)
		if len(bad.Rules) > 0 {
			return task.Invalid(bad.Rules)
		}
		return nil
	})
}

func (d *desk) resetDefault(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	return d.changeDefault(ctx, c, func(row *store.DefaultSMS) error {
		row.Sent = false
		return nil
	})
}

func (d *desk) changeDefault(ctx context.Context, c *fn.Call, edit func(*store.DefaultSMS) error) (any, error) {
	id, err := fn.RowID[int32](c, noDefault)
	if err != nil {
		return nil, err
	}
	row, err := d.db.EditDefault(ctx, id, c.Operator(""), edit)
	return defaultResponse(row), err
}

func (d *desk) deleteDefault(ctx context.Context, c *fn.Call, _ nothing) (any, error) {
	id, err := fn.RowID[int32](c, noDefault)
	if err != nil {
		return nil, err
	}
	row, err := d.db.DeleteDefault(ctx, id, c.Operator(""))
	return defaultResponse(row), err
}

func defaultResponse(row store.DefaultSMS) api.DefaultSMSResponse {
	return api.DefaultSMSResponse{
		ID: api.ID(row.ID), PhoneNumber: row.Phone, Content: row.Content, UseTemplate: row.UseTemplate, IsSent: row.Sent,
		CreatedAt: row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(),
	}
}
