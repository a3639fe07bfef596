package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

//go:embed templates
var templateFiles embed.FS

// site has the handlers of all pages.
type site struct {
	log *slog.Logger
}

// page is a request for one page. Its exported fields and methods are for templates.
type page struct {
	*fn.Visit
	w        http.ResponseWriter
	Language string     // en or zh
	Refusal  *api.Error // why the API refused the entered values; nil = not refused
	entered  bool       // forms show the entered values

	callerNames map[api.ID]string // of the callers on this page
}

// A handler writes a page, or returns an error, which is shown as a page.
type handler func(p *page) error

// page returns the route of a page for visitors who are logged in. Others are sent to the login.
func (s *site) page(h handler) fn.Route {
	return s.public(func(p *page) error {
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

// public returns the route of a page for everybody.
func (s *site) public(h handler) fn.Route {
	return fn.Page(func(w http.ResponseWriter, v *fn.Visit) {
		setSecurityHeaders(w)
		p := &page{Visit: v, w: w, Language: languageOf(v.Request)}
		if err := h(p); err != nil {
			s.showError(p, err)
		}
	})
}

// showError renders a page that says what went wrong.
func (s *site) showError(p *page, err error) {
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
	if shown.Status == http.StatusUnauthorized { // the session ended meanwhile
		_ = p.redirect("/console/login")
		return
	}
	p.Refusal = nil // the error page shows the message itself
	if err := p.render(shown.Status, "error", p.T("Error"), shown); err != nil {
		http.Error(p.w, shown.Message, shown.Status)
	}
}

func (s *site) notFound(p *page) error {
	return &api.Error{Status: http.StatusNotFound, Message: p.T("There is no such page.")}
}

// redirect sends the visitor to another page. It returns nil, so that a handler can end with it.
func (p *page) redirect(to string) error {
	http.Redirect(p.w, p.Request, to, http.StatusSeeOther)
	return nil
}

// done redirects to a page that shows the notice with this key.
func (p *page) done(to, notice string) error { return p.redirect(withNotice(to, "done", notice)) }

// doneMany is done for a notice that says how many.
func (p *page) doneMany(to, notice string, n int) error {
	return p.redirect(withNotice(to, "done", notice, "n", strconv.Itoa(n)))
}

// withNotice returns the address of a page with the parameters of a notice: name, value, name, value. They replace those of
// an earlier notice.
func withNotice(to string, notice ...string) string {
	path, text, _ := strings.Cut(to, "?")
	query, _ := url.ParseQuery(text) // malformed parameters are left out
	query.Del("n")
	for i := 0; i+1 < len(notice); i += 2 {
		query.Set(notice[i], notice[i+1])
	}
	return path + "?" + query.Encode()
}

// Notice returns the message about the last change. The address has its key.
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

// layout is the data of the template "layout".
type layout struct {
	*page
	Title   string
	Content any
}

// show renders a page. The status is 200, or that of the refusal.
func (p *page) show(name, title string, content any) error {
	if p.Refusal != nil {
		return p.render(p.Refusal.Status, name, title, content)
	}
	return p.render(http.StatusOK, name, title, content)
}

// render renders a template in the visitor's language, and writes it only when all of it succeeded.
func (p *page) render(status int, name, title string, content any) error {
	t, err := pageTemplate(p.Language, name)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := t.ExecuteTemplate(&body, "layout", layout{p, title, content}); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	p.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	p.w.Header().Set("Content-Language", htmlLanguages[p.Language])
	p.w.WriteHeader(status)
	_, _ = p.w.Write(body.Bytes()) // a visitor who left needs no page
	return nil
}

// parsedTemplates has the templates of pages that were shown, by language and name. Each has the blocks of the layout.
var parsedTemplates sync.Map

// pageTemplate parses a template at its first page: parsing all of them takes a new process 25 ms.
func pageTemplate(language, name string) (*template.Template, error) {
	key := language + "/" + name
	if t, ok := parsedTemplates.Load(key); ok {
		return t.(*template.Template), nil
	}
	t, err := template.New("").Funcs(templateFuncs(language)).ParseFS(templateFiles, "templates/shared/*.html", "templates/"+name+".html")
	if err == nil {
		parsedTemplates.Store(key, t)
	}
	return t, err
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
		if len(item.roles) > 0 && !slices.ContainsFunc(item.roles, p.May) || item.allQueues && len(p.Caller.Queues) > 0 {
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

// Closed reports whether the visitor may not open a page. The API routes of these pages belong to no queue, so an admin with
// queues needs another role for them.
func (p *page) Closed(path string) bool {
	switch path {
	case "/console/send":
		return !p.MaySubmit()
	case "/console/messages", "/console/subscribe", "/console/webhooks":
		return !p.MaySubmit() && !slices.Contains(p.Caller.Roles, string(fn.Viewer))
	}
	return false
}

// menu has the pages of the menu, with the roles that see them in addition to admin; no roles = all visitors.
var menu = []struct {
	path, text string
	roles      []fn.Role
	allQueues  bool // only for callers without queues, like the routes of the API that it calls
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

// MayChange reports whether the page shows buttons that change something. The API checks each change.
func (p *page) MayChange() bool { return p.May(fn.Admin) }

// MayChangeAll is MayChange for what belongs to no queue, which admins with queues may not change.
func (p *page) MayChangeAll() bool { return p.MayChange() && len(p.Caller.Queues) == 0 }

// MaySubmit reports whether the visitor may submit tasks. An admin with queues needs the role submitter for it.
func (p *page) MaySubmit() bool {
	return p.May(fn.Submitter) && (len(p.Caller.Queues) == 0 || slices.Contains(p.Caller.Roles, string(fn.Submitter)))
}

// ReadsAll reports whether the visitor reads what belongs to all callers and queues, as fn.Call.ReadsAll does.
func (p *page) ReadsAll() bool { return p.May(fn.Viewer) && len(p.Caller.Queues) == 0 }

// id returns the {id} of the address, escaped for other addresses.
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

// With returns the address of this page with changed parameters: name, value, name, value. An empty value removes its
// parameter. The position in a list (after) is removed unless it is among them.
func (p *page) With(pairs ...string) string {
	query := p.URL.Query()
	query.Del("done")
	query.Del("n")
	query.Del("after")
	for i := 0; i+1 < len(pairs); i += 2 {
		name, value := pairs[i], pairs[i+1]
		query.Del(name)
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return p.URL.Path
	}
	return p.URL.Path + "?" + query.Encode()
}

// Param is a parameter of the address, for the fields of a filter.
func (p *page) Param(name string) string { return p.URL.Query().Get(name) }
