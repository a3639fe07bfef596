package console

import (
	"net/http"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
)

const templatesPath = "/api/v1/admin/template"

func (p *page) smsTemplates() error {
	return showFiltered[api.Page[api.TemplateResponse]](p, templatesPath, p.query("active", "after"), "sms_templates", p.T("Templates"))
}

type smsTemplatePage struct {
	api.TemplateResponse
	Action  string       // of the form
	Preview *textPreview // nil = the form has no text yet
}

// Sample returns one line, such as "code=", for each parameter of the template.
func (t smsTemplatePage) Sample() string {
	var lines strings.Builder
	for _, name := range t.Params {
		lines.WriteString(name + "=\n")
	}
	return lines.String()
}

// textPreview is a rendered text, or the reason why it cannot be rendered.
type textPreview struct {
	api.PreviewResponse
	Refusal string // "" if the text is rendered
}

func (p *page) newSMSTemplate() error {
	shown := smsTemplatePage{Action: "/console/templates/new"}
	if content := p.Entered("template_content", ""); content != "" {
		var err error
		if shown.Preview, err = p.previewTemplate(content); err != nil {
			return err
		}
	}
	return p.show("sms_template", p.T("New template"), shown)
}

func (p *page) smsTemplate() error {
	id := p.id()
	response, err := get[api.TemplateResponse](p, templatesPath+"/"+id, nil)
	if err != nil {
		return err
	}
	shown := smsTemplatePage{TemplateResponse: response, Action: "/console/templates/" + id}
	if p.MayChange() {
		if shown.Preview, err = p.previewTemplate(p.Entered("template_content", response.TemplateContent)); err != nil {
			return err
		}
	}
	return p.show("sms_template", p.T("Template"), shown)
}

// previewTemplate renders the content of a template with the params of the form.
func (p *page) previewTemplate(content string) (*textPreview, error) {
	params, err := p.typedParams("params")
	if err != nil {
		return p.refusedPreview(err)
	}
	return p.previewWith(content, params)
}

func (p *page) previewWith(content string, params map[string]any) (*textPreview, error) {
	preview, err := post[api.PreviewResponse](p, templatesPath+"/preview", api.PreviewRequest{TemplateContent: content, Params: params})
	if err != nil {
		return p.refusedPreview(err)
	}
	return &textPreview{PreviewResponse: preview}, nil
}

// refusedPreview returns a preview with the reason why the entered values were refused. It returns other errors unchanged.
func (p *page) refusedPreview(err error) (*textPreview, error) {
	refused := p.refusalOf(err)
	if refused == nil || refused.Status != http.StatusBadRequest {
		return nil, err
	}
	text := refused.Message
	for _, field := range refused.Fields {
		text += p.T("; ") + field.Field + " " + field.Message
	}
	return &textPreview{Refusal: text}, nil
}

// typedParams reads the parameters of a template from a field, one name=value in each line. It skips parameters without a value.
func (p *page) typedParams(field string) (map[string]any, error) {
	params := map[string]any{}
	for line := range strings.Lines(p.PostFormValue(field)) {
		line = strings.TrimRight(line, "\r\n")
		name, value, ok := strings.Cut(line, "=")
		switch {
		case strings.TrimSpace(line) == "":
		case !ok:
			return nil, p.badField(field, p.T("each line must be name=value"))
		case value != "":
			params[strings.TrimSpace(name)] = value
		}
	}
	return params, nil
}

func (p *page) addSMSTemplate() error {
	added, err := post[api.TemplateResponse](p, templatesPath, api.TemplateRequest{TemplateName: p.PostFormValue("template_name"), TemplateContent: p.PostFormValue("template_content")})
	if err != nil {
		return p.showRefused(err, "/console/templates/new", (*page).newSMSTemplate)
	}
	return p.done("/console/templates/"+added.ID.String(), "template_added")
}

func (p *page) editSMSTemplate() error {
	id := p.id()
	name, content := p.PostFormValue("template_name"), p.PostFormValue("template_content")
	err := p.API(http.MethodPut, templatesPath+"/"+id, api.TemplateChange{TemplateName: &name, TemplateContent: &content}, nil)
	return p.finish(err, "/console/templates/"+id, (*page).smsTemplate, "saved")
}

// changeSMSTemplate handles the buttons of a template: preview, activate or deactivate.
func (p *page) changeSMSTemplate() error {
	id, do := p.id(), p.PathValue("do")
	switch do {
	case "preview":
		show := (*page).smsTemplate
		if id == "new" {
			show = (*page).newSMSTemplate
		}
		return p.showEntered("/console/templates/"+id, show)
	case "activate", "deactivate":
		err := p.API(http.MethodPost, templatesPath+"/"+id+"/"+do, nil, nil)
		return p.finish(err, "/console/templates/"+id, (*page).smsTemplate, "template_"+do+"d")
	}
	return p.notFound()
}
