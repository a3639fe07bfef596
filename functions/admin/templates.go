package admin

import (
	"context"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/task"
)

type templateRequest api.TemplateRequest

func (r *templateRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("template_name", r.TemplateName, task.MaxTemplateName)
	bad.Text("template_content", r.TemplateContent, task.MaxContent)
	return bad
}

func (h *handlers) addTemplate(ctx context.Context, c *fn.Call, req templateRequest) (any, error) {
	t, err := h.env.Admin.AddTemplate(ctx, req.TemplateName, req.TemplateContent, c.AsOperator(""))
	return templateResponse(t), err
}

type templatesRequest api.TemplatesRequest

func (r *templatesRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	return bad
}

func (h *handlers) templates(ctx context.Context, _ *fn.Call, req templatesRequest) (any, error) {
	rows, more, err := h.env.Admin.Templates(ctx, req.Active, int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, templateResponse, func(t admin.Template) int32 { return t.ID }), err
}

func (h *handlers) template(ctx context.Context, _ *fn.Call, id int32, _ struct{}) (any, error) {
	t, err := h.env.Admin.Template(ctx, id)
	return templateResponse(t), err
}

type templateChange api.TemplateChange

func (r *templateChange) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(*r == templateChange{}, "body", "must give template_name, template_content or is_active")
	if r.TemplateName != nil {
		bad.Text("template_name", *r.TemplateName, task.MaxTemplateName)
	}
	if r.TemplateContent != nil {
		bad.Text("template_content", *r.TemplateContent, task.MaxContent)
	}
	return bad
}

func (h *handlers) editTemplate(ctx context.Context, c *fn.Call, id int32, req templateChange) (any, error) {
	t, err := h.env.Admin.EditTemplate(ctx, id, c.AsOperator(""), func(t *admin.Template) {
		setIfGiven(&t.Name, req.TemplateName)
		setIfGiven(&t.Content, req.TemplateContent)
		setIfGiven(&t.Active, req.IsActive)
	})
	return templateResponse(t), err
}

// setIfGiven sets target to the field of a request, unless the field is nil.
func setIfGiven[V any](target, field *V) {
	if field != nil {
		*target = *field
	}
}

func (h *handlers) activateTemplate(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	return h.editTemplate(ctx, c, id, templateChange{IsActive: new(true)})
}

func (h *handlers) deactivateTemplate(ctx context.Context, c *fn.Call, id int32, _ struct{}) (any, error) {
	return h.editTemplate(ctx, c, id, templateChange{IsActive: new(false)})
}

func templateResponse(t admin.Template) api.TemplateResponse {
	return api.TemplateResponse{
		ID: api.ID(t.ID), TemplateName: t.Name, TemplateContent: t.Content, IsActive: t.Active,
		Params: nonNilCopy(task.ParseTemplate(t.Content).Names()), CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(),
	}
}

// nonNilCopy returns a copy of list. The copy is never nil, even if list is, so that it is [] in JSON.
func nonNilCopy(list []string) []string { return append([]string{}, list...) }

// previewRequest previews a stored template. Its parameters are in params, or URL-encoded in content.
type previewRequest api.PreviewRequest

func (r *previewRequest) Validate() []task.Field {
	_, fields := r.values()
	bad := decode.BadFields(fields)
	bad.AtMost("content", r.Content, task.MaxEncoded)
	bad.When(r.TemplateContent != "", "template_content", "must not be given: the template of the path is previewed")
	return bad
}

// unstoredRequest previews a template that is not stored.
type unstoredRequest api.PreviewRequest

func (r *unstoredRequest) Validate() []task.Field {
	_, fields := (*previewRequest)(r).values()
	bad := decode.BadFields(fields)
	bad.AtMost("content", r.Content, task.MaxEncoded)
	bad.Text("template_content", r.TemplateContent, task.MaxContent)
	return bad
}

// values returns either the parameters, as a map that is not nil, or the bad fields.
func (r *previewRequest) values() (map[string]string, []task.Field) {
	switch {
	case r.Params != nil && r.Content != "":
		return nil, []task.Field{{Name: "params", Message: "must not be given together with content"}}
	case r.Params != nil:
		return task.ParamsFromJSON(r.Params)
	}
	values, err := task.ParseParams(r.Content)
	if err != nil {
		return nil, []task.Field{{Name: "content", Message: err.Error()}}
	}
	return values, nil
}

func (h *handlers) previewTemplate(ctx context.Context, _ *fn.Call, id int32, req previewRequest) (any, error) {
	t, err := h.env.Admin.Template(ctx, id)
	if err != nil {
		return nil, err
	}
	return h.preview(ctx, task.StoredTemplate{ID: t.ID, Name: t.Name, Content: t.Content}, &req)
}

func (h *handlers) previewUnstored(ctx context.Context, _ *fn.Call, req unstoredRequest) (any, error) {
	// With this name, the error of Compose for a missing parameter is "... is missing: template of this preview needs it".
	return h.preview(ctx, task.StoredTemplate{Name: "of this preview", Content: req.TemplateContent}, (*previewRequest)(&req))
}

// preview renders and checks the text as a submission would, and writes nothing.
func (h *handlers) preview(ctx context.Context, t task.StoredTemplate, req *previewRequest) (any, error) {
	values, _ := req.values() // Validate has checked it
	text, missing, unused := task.ParseTemplate(t.Content).Render(values)
	segments, encoding := task.Segments(text)
	response := api.PreviewResponse{
		FinalContent: text, Segments: segments, Encoding: string(encoding), Length: utf8.RuneCountInString(text),
		MissingParams: nonNilCopy(missing), UnusedParams: nonNilCopy(unused),
	}
	if _, err := (task.Draft{Params: values, UseTemplate: true}).Compose(&t); err != nil {
		response.Problem = err.Error()
		return response, nil
	}
	blocked, err := h.env.Admin.Blocked(ctx, text)
	if blocked {
		response.Problem = "the content holds a blocked word"
	}
	response.Sendable = !blocked
	return response, err
}
