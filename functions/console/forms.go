package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// refusedInput reports whether err is a refusal of the entered values. It stores the refusal, so that the handler can show
// the form again with the entered values and their problems.
func (p *page) refusedInput(err error) bool {
	refused := p.refusalOf(err)
	if refused == nil {
		return false
	}
	switch refused.Status {
	case http.StatusBadRequest, http.StatusConflict:
	case http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if p.Method != http.MethodPost {
			return false
		}
	default:
		return false
	}
	p.Refusal, p.entered = refused, p.Method == http.MethodPost
	return true
}

// showRefused shows the page at an address with the refused form. It returns err if that is not a refusal.
func (p *page) showRefused(err error, to string, show handler) error {
	if !p.refusedInput(err) {
		return err
	}
	return p.showEntered(to, show)
}

// finish ends a change. It redirects to a page with a notice, or shows that page with the refused form.
func (p *page) finish(err error, to string, show handler, notice string) error {
	if err != nil {
		return p.showRefused(err, to, show)
	}
	return p.done(to, notice)
}

// showEntered shows the page at an address with the entered values in its form.
func (p *page) showEntered(to string, show handler) error {
	if err := p.setAddress(to); err != nil {
		return err
	}
	p.entered = true
	return show(p)
}

// setAddress replaces the address of the request, the action of a form, by the address of a page. Links in the response
// are built from it.
func (p *page) setAddress(to string) error {
	address, err := url.Parse(to)
	if err != nil {
		return err
	}
	visit := *p.Visit
	visit.Request = p.WithContext(p.Context())
	visit.URL = address
	p.Visit = &visit
	return nil
}

// Form returns the page for one of several forms on it. A hidden input "form" has the form's name. Only the refused form
// has a Refusal.
func (p *page) Form(name string) *page {
	form := *p
	if p.PostFormValue("form") != name {
		form.Refusal, form.entered = nil, false
	}
	return &form
}

// Problem returns the error messages of a field of the form, or "". Those of its parts ("events[2]") are included.
func (p *page) Problem(field string) string {
	if p.Refusal == nil {
		return ""
	}
	var problems []string
	for _, f := range p.Refusal.Fields {
		if f.Field == field || strings.HasPrefix(f.Field, field+"[") || strings.HasPrefix(f.Field, field+".") {
			problems = append(problems, f.Message)
		}
	}
	return strings.Join(problems, p.T("; "))
}

// Entered returns the value that a field of a form shows: the entered one if the form was refused, else the initial one.
func (p *page) Entered(field, initial string) string {
	if p.entered {
		return p.PostFormValue(field)
	}
	return initial
}

// Selected reports whether a checkbox or an option is selected: as entered if the form was refused, else as in initial.
func (p *page) Selected(field, value string, initial bool) bool {
	if p.entered {
		return slices.Contains(p.PostForm[field], value)
	}
	return initial
}
