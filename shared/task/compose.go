package task

import (
	"strings"
	"unicode/utf8"
)

// Draft is the text of a message before templates and default content are
// applied.
type Draft struct {
	Content      string            // the text, or URL-encoded parameters of a template
	Params       map[string]string // the parameters, instead of Content; nil when not given
	UseTemplate  bool
	TemplateID   int32  // 0 = not named
	TemplateName string // "" = not named
}

// NeedsDefault reports whether the stored default content of the phone number must be sent: the draft has neither a
// text nor parameters, and names no template.
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

// DefaultContent is the stored default of one phone number.
type DefaultContent struct {
	ID          int32
	Content     string
	UseTemplate bool
	Sent        bool
}

// WithDefault replaces an empty draft by the phone number's default content; row is nil if there is none. The
// row's UseTemplate applies instead of the request's, with the first active template.
func (d Draft) WithDefault(row *DefaultContent) (Draft, error) {
	switch {
	case row == nil:
		return d, Refuse(CodeNoDefault, "content is empty and this phone number has no default content; send content, or let an admin store a default with POST /api/v1/admin/default-sms")
	case row.Sent:
		return d, Refuse(CodeDefaultSent, "the default content of this phone number was already sent; send content, or reset the default")
	}
	return Draft{Content: row.Content, UseTemplate: row.UseTemplate}, nil
}

// Compose returns the final text. tmpl is the template that the draft selects, nil if there is none; it is not
// used if the draft does not use one. The error names missing parameters; unused ones are only listed.
func (d Draft) Compose(tmpl *StoredTemplate) (Composed, error) {
	if !d.UseTemplate {
		return Composed{Text: d.Content}, checkText("content", d.Content)
	}
	if tmpl == nil {
		return Composed{}, d.noTemplate()
	}
	params := d.Params
	if params == nil && d.Content != "" {
		var err error
		if params, err = ParseParams(d.Content); err != nil {
			return Composed{}, Invalid([]Field{{Name: "content", Message: err.Error()}})
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
	return Composed{Text: text, UseTemplate: true, Unused: unused}, checkText("content", text)
}

func (d Draft) noTemplate() error {
	switch {
	case d.TemplateID != 0:
		return Invalid([]Field{{Name: "template_id", Message: "must name an active template"}})
	case d.TemplateName != "":
		return Invalid([]Field{{Name: "template_name", Message: "must name an active template"}})
	default:
		return Invalid([]Field{{Name: "use_template", Message: "is true but no template is active; create one with POST /api/v1/admin/template"}})
	}
}

// checkText checks the final text, after templates and defaults: it must not be blank, and have at most
// MaxContent characters.
func checkText(field, text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return Invalid([]Field{{Name: field, Message: "must not be blank"}})
	case utf8.RuneCountInString(text) > MaxContent:
		return Invalid([]Field{{Name: field, Message: "must be at most 200 characters after templates are applied"}})
	default:
		return nil
	}
}
