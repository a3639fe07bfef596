package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// keepRefusal stores err in p.Refusal and returns true if the page can still be shown: after a GET whose filter was refused, or a POST
// whose form was refused. After a POST, forms then show the entered values.
func (p *page) keepRefusal(err error) bool {
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

// showRefused shows the page at an address, with the refused form. It returns err if keepRefusal returns false.
func (p *page) showRefused(err error, to string, show handler) error {
	if !p.keepRefusal(err) {
		return err
	}
	return p.showEntered(to, show)
}

// finish ends a change. It redirects to a page with a notice or, if err is a refusal, shows that page with the refused form.
func (p *page) finish(err error, to string, show handler, notice string) error {
	if err != nil {
		return p.showRefused(err, to, show)
	}
	return p.done(to, notice)
}

// showEntered shows the page at an address with the entered values in its form.
func (p *page) showEntered(to string, show handler) error {
	p.setAddress(to)
	p.entered = true
	return show(p)
}

// setAddress replaces the address of the request, such as the action of a form, by the address of the page that is shown. Templates build
// links from the new address.
func (p *page) setAddress(to string) {
	address, err := url.Parse(to)
	if err != nil {
		panic(err) // a defect: the code that built the address did not escape its parts
	}
	visit := *p.Visit
	visit.Request = p.WithContext(p.Context()) // a copy: the original request keeps its URL
	visit.URL = address
	p.Visit = &visit
}

// Form returns a copy of the page for one of its forms. The copy has the Refusal and the entered values only if this form was
// submitted. The name of a form is the value of its hidden input "form"; without this input, the name is "".
func (p *page) Form(name string) *page {
	form := *p
	if p.PostFormValue("form") != name {
		form.Refusal, form.entered = nil, false
	}
	return &form
}

// Problem returns the error messages of a field and of its parts, such as events[2] for the field events; "" if there are none.
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

// Entered returns the value that a field of a form shows: what was entered if the form is shown again after a POST, else initial.
func (p *page) Entered(field, initial string) string {
	if p.entered {
		return p.PostFormValue(field)
	}
	return initial
}

// Selected reports whether a checkbox or an option is selected: as entered if the form is shown again after a POST, else initial.
func (p *page) Selected(field, value string, initial bool) bool {
	if p.entered {
		return slices.Contains(p.PostForm[field], value)
	}
	return initial
}

// showFiltered is showGet for a page with a filter. If the API refuses the filter, the page shows why.
func showFiltered[T any](p *page, path string, query url.Values, template, title string) error {
	response, err := get[T](p, path, query)
	if err != nil && !p.keepRefusal(err) {
		return err
	}
	return p.show(template, title, response)
}
