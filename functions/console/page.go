package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/functions/console/apidocs"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

// page is a request for a page of the console. Templates use its exported fields and methods.
type page struct {
	*fn.Visit
	w           http.ResponseWriter
	Language    string            // en or zh
	Refusal     *api.Error        // why the form or filter was refused, by the API or by the page itself; nil = not refused
	entered     bool              // forms show the values that the visitor has entered
	callerNames map[api.ID]string // filled by nameCallers
}

// A handler writes a page, or returns an error, which is shown as a page.
type handler func(p *page) error

// T translates a text and formats it with the values, as fmt.Sprintf does.
func (p *page) T(text string, values ...any) string { return translate(p.Language, text, values...) }

// private returns the route of a page for visitors who are logged in. Other visitors are redirected to the login page.
func private(h handler) fn.Route {
	return public(func(p *page) error {
		if p.LoggedIn() {
			if p.ParseForm() != nil {
				return &api.Error{Status: http.StatusBadRequest, Message: p.T("The form is malformed.")}
			}
			return h(p)
		}
		login := "/console/login"
		if p.Method == http.MethodGet && p.URL.Path != "/console" {
			login += "?" + url.Values{"next": {p.URL.RequestURI()}}.Encode()
		}
		return p.redirect(login)
	})
}

// public returns the route of a page for all visitors.
func public(h handler) fn.Route {
	return fn.Page(func(w http.ResponseWriter, v *fn.Visit) {
		apidocs.SetSecurityHeaders(w.Header(), "'self'")
		p := &page{Visit: v, w: w, Language: languageOf(v.Request)}
		if err := h(p); err != nil {
			p.showError(err)
		}
	})
}

// showError shows an error as a page, or redirects to the login page if the session has ended.
func (p *page) showError(err error) {
	shown := &api.Error{Status: http.StatusInternalServerError, Message: p.T("The page could not be rendered. The log has the reason.")}
	refused := p.refusalOf(err)
	switch {
	case refused != nil:
		shown = refused
	case errors.Is(err, context.DeadlineExceeded):
		shown = &api.Error{Status: http.StatusServiceUnavailable, Message: p.T("The service did not respond in time. Try again.")}
	default:
		p.Log("error", "page_failed", "cause", err.Error())
	}
	if shown.Status == http.StatusUnauthorized {
		_ = p.redirect("/console/login")
		return
	}
	p.Refusal = nil // the error page shows the message itself
	if err := p.render(shown.Status, "error", p.T("Error"), shown); err != nil {
		http.Error(p.w, shown.Message, shown.Status)
	}
}

// refusalOf returns the *api.Error in err, with its texts in the language of the page, or nil if err is another error.
func (p *page) refusalOf(err error) *api.Error {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok {
		return nil
	}
	shown := *refused
	shown.Message, shown.Fields = translateAPI(p.Language, refused.Message), slices.Clone(refused.Fields)
	for i := range shown.Fields {
		shown.Fields[i].Message = translateAPI(p.Language, shown.Fields[i].Message)
	}
	return &shown
}

func (p *page) notFound() error {
	return &api.Error{Status: http.StatusNotFound, Message: p.T("There is no such page.")}
}

// redirect redirects to another page. It returns nil, so that a handler can end with return p.redirect(…).
func (p *page) redirect(to string) error {
	http.Redirect(p.w, p.Request, to, http.StatusSeeOther)
	return nil
}

// done redirects to a page that shows a notice: the text of the map notices with this key.
func (p *page) done(to, notice string) error { return p.redirect(withNotice(to, notice, "")) }

// doneMany is like done, for a notice with a count.
func (p *page) doneMany(to, notice string, n int) error {
	return p.redirect(withNotice(to, notice, strconv.Itoa(n)))
}

// withNotice returns the address of a page with the parameters of a notice in place of an earlier notice. count may be "".
func withNotice(to, notice, count string) string {
	path, text, _ := strings.Cut(to, "?")
	query, _ := url.ParseQuery(text) // without malformed parameters
	query.Set("done", notice)
	query.Del("n")
	if count != "" {
		query.Set("n", count)
	}
	return path + "?" + query.Encode()
}

// Notice returns the text of the notice whose key is the parameter "done" of the address, or "".
func (p *page) Notice() string {
	text := notices[p.Param("done")]
	switch n, err := strconv.Atoi(p.Param("n")); {
	case text == "":
		return ""
	case !strings.Contains(text, "%s"):
		return p.T(text)
	case err == nil:
		return p.T(text, number(n))
	}
	return ""
}

// layout is the data of the template layout.
type layout struct {
	*page
	Title   string
	Content any
}

// show renders a page with the status 200, or with the status of the refusal.
func (p *page) show(name, title string, content any) error {
	if p.Refusal != nil {
		return p.render(p.Refusal.Status, name, title, content)
	}
	return p.render(http.StatusOK, name, title, content)
}

// render renders a template in the visitor's language. It writes the page only after the whole template is rendered.
func (p *page) render(status int, name, title string, content any) error {
	t, err := pageTemplate(p.Language, name)
	if err != nil {
		return err
	}
	body := p.Buffer()
	if err := t.ExecuteTemplate(body, "layout", layout{p, title, content}); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	p.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	p.w.Header().Set("Content-Language", htmlLanguages[p.Language])
	p.w.WriteHeader(status)
	_, _ = p.w.Write(body.Bytes()) // fails only if the visitor has left
	return nil
}

// navItem is a link of the menu.
type navItem struct {
	Path, Text string
	Current    bool
}

// Nav returns the menu: the pages that the visitor may see.
func (p *page) Nav() []navItem {
	var items []navItem
	for _, item := range menu {
		if len(item.roles) > 0 && !slices.ContainsFunc(item.roles, p.May) || item.needsAllQueues && len(p.Caller.Queues) > 0 {
			continue
		}
		if p.Closed(item.path) {
			continue
		}
		current := p.URL.Path == item.path || item.path != "/console" && strings.HasPrefix(p.URL.Path, item.path+"/")
		items = append(items, navItem{item.path, p.T(item.text), current})
	}
	return items
}

// Closed reports whether the API refuses the calls of a page because of the visitor's roles. /console/send needs the role submitter,
// and the other pages named here submitter or viewer. An admin without queues needs none of these roles, an admin with queues does.
func (p *page) Closed(path string) bool {
	switch path {
	case "/console/send":
		return !p.MaySubmit()
	case "/console/messages", "/console/subscribe", "/console/webhooks":
		return !p.MaySubmit() && !slices.Contains(p.Caller.Roles, string(fn.Viewer))
	}
	return false
}

// menu has the pages of the menu.
var menu = []struct {
	path, text     string
	roles          []fn.Role // the page is for admins and for these roles; nil = for all visitors
	needsAllQueues bool      // the page is not for callers with queues: the API does not return its data to them
}{
	{"/console", "Overview", []fn.Role{fn.Viewer}, false},
	{"/console/tasks", "Tasks", []fn.Role{fn.Viewer, fn.Submitter}, false},
	{"/console/send", "Send an SMS", []fn.Role{fn.Submitter}, false},
	{"/console/held", "Held tasks", []fn.Role{fn.Viewer}, false},
	{"/console/bulk", "Bulk changes", []fn.Role{fn.Viewer}, false},
	{"/console/queues", "Queues", []fn.Role{fn.Viewer}, false},
	{"/console/messages", "Messages", []fn.Role{fn.Viewer, fn.Submitter}, false},
	{"/console/subscribe", "Subscribe messages", []fn.Role{fn.Viewer, fn.Submitter}, false},
	{"/console/webhooks", "Webhooks", []fn.Role{fn.Viewer, fn.Submitter}, false},
	{"/console/senders", "Sender apps", []fn.Role{fn.Viewer}, true},
	{"/console/templates", "Templates", []fn.Role{fn.Viewer}, false},
	{"/console/default-sms", "Default SMS", []fn.Role{fn.Viewer}, true},
	{"/console/blocked-words", "Blocked words", []fn.Role{fn.Viewer}, true},
	{"/console/callers", "Callers", []fn.Role{fn.Viewer}, false},
	{"/console/alerts", "Alerts", []fn.Role{fn.Viewer}, false},
	{"/console/dead-letters", "Dead letters", []fn.Role{fn.Viewer}, true},
	{"/console/audit", "Audit log", []fn.Role{fn.Viewer}, true},
	{"/docs", "API", nil, false},
}

// MayChange reports whether the visitor is an admin, with or without queues. Only then does a page show the buttons of operators. The
// API checks each change again.
func (p *page) MayChange() bool { return p.May(fn.Admin) }

// MayChangeAll reports whether the visitor is an admin without queues. Only such an admin may change objects that belong to no queue,
// such as templates.
func (p *page) MayChangeAll() bool { return p.MayChange() && len(p.Caller.Queues) == 0 }

// MaySubmit reports whether the visitor may submit tasks: a submitter, or an admin without queues.
func (p *page) MaySubmit() bool {
	return p.May(fn.Submitter) && (len(p.Caller.Queues) == 0 || slices.Contains(p.Caller.Roles, string(fn.Submitter)))
}

// ReadsAll reports whether the visitor may read the objects of all callers and queues, as fn.Call.ReadsAll does.
func (p *page) ReadsAll() bool { return p.May(fn.Viewer) && len(p.Caller.Queues) == 0 }

// id returns the {id} of the address, escaped for a path.
func (p *page) id() string { return url.PathEscape(p.PathValue("id")) }

// query returns the parameters of the address that have these names and are not empty.
func (p *page) query(names ...string) url.Values {
	all, query := p.URL.Query(), url.Values{}
	for _, name := range names {
		if value := strings.TrimSpace(all.Get(name)); value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// get calls a GET route of the API.
func get[T any](p *page, path string, query url.Values) (out T, err error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return out, p.API(http.MethodGet, path, nil, &out)
}

// post calls a POST route of the API.
func post[T any](p *page, path string, body any) (out T, err error) {
	return out, p.API(http.MethodPost, path, body, &out)
}

// showGet shows the response of a GET route of the API in a template.
func showGet[T any](p *page, path string, query url.Values, template, title string) error {
	response, err := get[T](p, path, query)
	if err != nil {
		return err
	}
	return p.show(template, title, response)
}

// With returns the address of this page with changed parameters, given as name, value, name, value. An empty value removes its
// parameter. With also removes the notice, and the position in a list (after) unless pairs has a new position.
func (p *page) With(pairs ...string) string {
	query := p.URL.Query()
	query.Del("done")
	query.Del("n")
	query.Del("after")
	for i := 0; i+1 < len(pairs); i += 2 {
		if name, value := pairs[i], pairs[i+1]; value == "" {
			query.Del(name)
		} else {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return p.URL.Path
	}
	return p.URL.Path + "?" + query.Encode()
}

// Param returns a parameter of the address.
func (p *page) Param(name string) string { return p.URL.Query().Get(name) }
