package console

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

type sendPage struct {
	Action    string // of the form
	Key       string // idempotency key of this form, so that submitting the form twice creates one task
	Templates []api.TemplateResponse
	Preview   *textPreview
}

func (p *page) sendForm() error {
	if !p.MaySubmit() {
		return &api.Error{Status: http.StatusForbidden, Message: p.T("Sending an SMS needs the role submitter.")}
	}
	shown := sendPage{Action: "/console/send", Key: p.Entered("idempotency_key", "console-"+rand.Text())}
	if p.May(fn.Viewer) {
		response, err := get[api.Page[api.TemplateResponse]](p, templatesPath, url.Values{"active": {"true"}, "limit": {"200"}})
		if err != nil {
			return err
		}
		shown.Templates = response.Items
	}
	var err error
	if shown.Preview, err = shown.preview(p); err != nil {
		return err
	}
	return p.show("send", p.T("Send an SMS"), shown)
}

// preview returns the text that the form would send and whether it can be sent (Sendable), or nil if the form has no text yet. Only
// for an admin can Sendable be true, because the API previews texts only for admins.
func (f sendPage) preview(p *page) (*textPreview, error) {
	preview, err := f.previewText(p)
	if preview == nil || err != nil {
		return nil, err
	}
	if p.Refusal != nil || strings.TrimSpace(p.PostFormValue("phone_number")) == "" {
		preview.Sendable = false
	}
	if refused := p.refusalOf(p.checkMessage()); refused != nil {
		preview.Sendable = false
		if len(refused.Fields) > 0 {
			preview.Problem = refused.Fields[0].Field + " " + refused.Fields[0].Message
		}
	}
	return preview, nil
}

// previewText returns the text, or nil if the form has none yet. Only admins can preview a template.
func (f sendPage) previewText(p *page) (*textPreview, error) {
	content, id := p.Entered("content", ""), p.Entered("template_id", "")
	switch {
	case (id != "" || p.Entered("template_name", "") != "") && !p.MayChange():
		return &textPreview{Refusal: p.T("Only admins can preview a template. The text is composed when you submit the message.")}, nil
	case id != "":
		i := slices.IndexFunc(f.Templates, func(t api.TemplateResponse) bool { return t.ID.String() == id })
		if i < 0 {
			return nil, nil
		}
		return p.previewTemplate(f.Templates[i].TemplateContent)
	case content == "":
		return nil, nil
	case p.MayChange():
		return p.previewWith("{content}", map[string]any{"content": content}) // a parameter, because braces in a template are parameters
	}
	segments, encoding := task.Segments(content)
	return &textPreview{PreviewResponse: api.PreviewResponse{FinalContent: content, Length: utf8.RuneCountInString(content), Segments: segments, Encoding: string(encoding)}}, nil
}

// checkMessage checks the fields that can be checked without the API. It accepts an empty phone number, because the visitor may enter
// the number later.
func (p *page) checkMessage() error {
	if phone := p.PostFormValue("phone_number"); phone != "" {
		if _, problem := task.Country("").Phone(phone); problem != "" {
			return p.badField("phone_number", problem)
		}
	}
	if queue := p.PostFormValue("queue"); queue != "" && !task.ValidQueue(queue) {
		return p.badField("queue", task.QueueRule)
	}
	request, err := p.typedMessage()
	if err == nil && request.SendAt != nil && request.SendAt.After(time.Now().Add(decode.MaxTaskDelay)) {
		err = p.badField("send_at", p.T("must be at most a year ahead"))
	}
	return err
}

func (p *page) previewSend() error { return p.showEntered("/console/send", (*page).sendForm) }

// send submits the form with its idempotency key, so that a second click shows the task of the first click.
func (p *page) send() error {
	request, err := p.typedMessage()
	var sent api.SendResponse
	if err == nil {
		sent, err = post[api.SendResponse](p, "/api/v1/sms/send", request)
	}
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == task.CodeKeyReused {
		// The form was sent twice and the requests differ, for example because a time such as "2h" depends on when the form is sent.
		response, err := get[api.TaskResponse](p, "/api/v1/sms/by-key/"+url.PathEscape(request.IdempotencyKey), nil)
		if err != nil {
			return err
		}
		return p.done("/console/tasks/"+url.PathEscape(response.TaskID), "sent_before")
	}
	if err != nil {
		return p.showRefused(err, "/console/send", (*page).sendForm)
	}
	return p.done("/console/tasks/"+url.PathEscape(sent.TaskID), "sent")
}

// typedMessage reads the message from the form. A visitor who may list templates chooses a template, and the form has the template's
// id, because several templates may have the same name. Other visitors type a name.
func (p *page) typedMessage() (api.SendRequest, error) {
	request := api.SendRequest{
		PhoneNumber: p.PostFormValue("phone_number"), Content: p.PostFormValue("content"), Queue: p.PostFormValue("queue"),
		TemplateName: p.PostFormValue("template_name"), IdempotencyKey: p.PostFormValue("idempotency_key"), Source: "console",
	}
	if request.IdempotencyKey == "" {
		return request, &api.Error{Status: http.StatusBadRequest, Message: p.T("The form has no key: open the page again.")}
	}
	var err error
	if id := p.PostFormValue("template_id"); id != "" {
		if err = request.TemplateID.UnmarshalJSON([]byte(id)); err != nil {
			return request, p.badField("template_id", p.T("choose a template from the list"))
		}
	}
	if request.SendAt, err = p.typedTime("send_at"); err != nil {
		return request, err
	}
	if request.TemplateID == 0 && request.TemplateName == "" {
		return request, nil
	}
	if request.Content != "" {
		return request, p.badField("content", p.T("must be empty when a template is chosen"))
	}
	request.Params, err = p.typedParams("params")
	return request, err
}
