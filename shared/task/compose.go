package task

import (
	"strings"
	"unicode/utf8"
)

// Draft is the text of a message before templates and default content are applied.
type Draft struct {
	Content      string            // the text, or URL-encoded parameters of a template
	Params       map[string]string // the parameters, instead of Content; nil = not given
	UseTemplate  bool
	TemplateID   int32  // 0 = not given
	TemplateName string // "" = not given
}

// NeedsDefault reports whether the draft has no text and no parameters, and names no template. Then the stored default
// content of the phone number must be sent, even if UseTemplate is set.
func (d Draft) NeedsDefault() bool {
	return d.Content == "" && d.Params == nil && d.TemplateID == 0 && d.TemplateName == ""
}

// Composed is the text that will be sent.
type Composed struct {
	Text        string
	UseTemplate bool
	Unused      []string // parameters without a placeholder in the template, sorted
}

// StoredTemplate is a template as the operator wrote it.
type StoredTemplate struct {
	ID      int32
	Name    string
	Content string
}

// DefaultContent is the stored default content of one phone number, which is sent once.
type DefaultContent struct {
	ID          int32
	Content     string
	UseTemplate bool
	Sent        bool
}

// WithDefault replaces an empty draft by the default content of the phone number; stored is nil if there is none.
func (d Draft) WithDefault(stored *DefaultContent) (Draft, error) {
	switch {
	case stored == nil:
		return d, Refuse(CodeNoDefault, "content is empty and this phone number has no default content; send content, or let an admin store a default with POST /api/v1/admin/default-sms")
	case stored.Sent:
		return d, Refuse(CodeDefaultSent, "the default content of this phone number was already sent; send content, or reset the default")
	}
	return Draft{Content: stored.Content, UseTemplate: stored.UseTemplate}, nil
}

// Compose returns the final text. tmpl is the template that a draft with UseTemplate selects; nil if there is none. If
// parameters are missing, the error names them.
func (d Draft) Compose(tmpl *StoredTemplate) (Composed, error) {
	if !d.UseTemplate {
		return Composed{Text: d.Content}, checkText(d.Content)
	}
	if tmpl == nil {
		return Composed{}, d.noTemplate()
	}
	params := d.Params
	if params == nil && d.Content != "" {
		var err error
		if params, err = ParseParams(d.Content); err != nil {
			return Composed{}, invalidField("content", err.Error())
		}
	}
	text, missing, unused := ParseTemplate(tmpl.Content).Render(params)
	if len(missing) > 0 {
		fields := make([]Field, len(missing))
		for i, name := range missing {
			fields[i] = Field{Name: "params." + name, Message: "is missing: template " + tmpl.Name + " needs it"}
		}
		return Composed{}, Invalid(fields)
	}
	return Composed{Text: text, UseTemplate: true, Unused: unused}, checkText(text)
}

func (d Draft) noTemplate() error {
	switch {
	case d.TemplateID != 0:
		return invalidField("template_id", "must name an active template")
	case d.TemplateName != "":
		return invalidField("template_name", "must name an active template")
	default:
		return invalidField("use_template", "is true but no template is active; create one with POST /api/v1/admin/template")
	}
}

func invalidField(name, message string) error { return Invalid([]Field{{name, message}}) }

func checkText(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return invalidField("content", "must not be blank")
	case utf8.RuneCountInString(text) > MaxContent:
		return invalidField("content", "must be at most 200 characters after templates are applied")
	default:
		return nil
	}
}
