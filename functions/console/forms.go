package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// storeRefusal stores err as the page's Refusal if the page can still be shown: after a GET, if err refuses the parameters;
// after a POST, if err refuses the change, so that the form is shown again with the entered values. It reports whether it
// stored err.
func (p *page) storeRefusal(err error) bool {
	refused := p.refusalOf(err)
	if refused == nil {
		return false
	}
	posted := p.Method == http.MethodPost
	switch refused.Status {
	case http.StatusBadRequest, http.StatusConflict:
	case http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if !posted {
			return false // the page has nothing to show
		}
	default:
		return false
	}
	p.Refusal, p.entered = refused, posted
	return true
}

// showRefused shows the page at an address with the refused form. It returns err if storeRefusal does not store it.
func (p *page) showRefused(err error, to string, show handler) error {
	if !p.storeRefusal(err) {
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

// setAddress replaces the address of the request by that of a page, from which the response builds its links. The request
// of a form has the address of the form's action.
func (p *page) setAddress(to string) error {
	address, err := url.Parse(to)
	if err != nil {
		return err
	}
	visit := *p.Visit
	visit.Request = p.WithContext(p.Context()) // a copy: the original request keeps its URL
	visit.URL = address
	p.Visit = &visit
	return nil
}

// Form returns a copy of the page for one of its forms. The copy has the Refusal and the entered values only if that form
// was submitted. A form has its name in a hidden input "form", or none and the name "".
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

// Entered returns the value that a field of a form shows: the entered one if the form is shown again after a POST, else the
// initial one.
func (p *page) Entered(field, initial string) string {
	if p.entered {
		return p.PostFormValue(field)
	}
	return initial
}

// Selected reports whether a checkbox or an option is selected: as entered if the form is shown again after a POST, else
// as in initial.
func (p *page) Selected(field, value string, initial bool) bool {
	if p.entered {
		return slices.Contains(p.PostForm[field], value)
	}
	return initial
}
