package console

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// loginPage is the login form, with the problem of the last attempt.
type loginPage struct {
	Name, Next, Problem string
	Insecure            bool // over plain HTTP a browser does not keep the session
}

func (p *page) login(problem string) loginPage {
	return loginPage{Name: p.PostFormValue("name"), Next: localPath(p.FormValue("next")), Problem: problem, Insecure: !fn.IsHTTPS(p.Request) && !fn.IsLoopback(p.Host)}
}

func (s *site) loginForm(p *page) error {
	if p.LoggedIn() {
		return p.redirect("/console")
	}
	return p.show("login", p.T("Log in"), p.login(""))
}

// logIn starts a session. Wrong passwords are limited and delayed like those of API calls.
func (s *site) logIn(p *page) error {
	if err := p.ParseForm(); err != nil {
		return p.render(http.StatusBadRequest, "login", p.T("Log in"), p.login(p.T("The form is malformed.")))
	}
	err := p.LogIn(p.Context(), p.w, p.PostFormValue("name"), p.PostFormValue("password"))
	var refused *task.Error
	switch {
	case err == nil:
		return p.redirect(localPath(p.PostFormValue("next")))
	case errors.Is(err, fn.ErrNoSessionKey):
		return p.render(http.StatusServiceUnavailable, "login", p.T("Log in"), p.login(p.T("Nobody can log in: SENDONCE_ENCRYPTION_KEYS must be set for this function.")))
	case !errors.As(err, &refused):
		return err
	}
	status, problem := http.StatusUnauthorized, p.T("The name or the password is wrong.")
	if refused.RetryAfter > 0 {
		status, problem = http.StatusTooManyRequests, p.T("Too many failed logins, or the service is busy. Try again in a moment.")
	}
	return p.render(status, "login", p.T("Log in"), p.login(problem))
}

func (s *site) logOut(p *page) error {
	p.LogOut(p.w)
	return p.redirect("/console/login")
}

func (s *site) setLanguage(p *page) error {
	if language := p.PostFormValue("language"); htmlLanguages[language] != "" {
		http.SetCookie(p.w, &http.Cookie{Name: languageCookie, Value: language, Path: "/console", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	}
	return p.redirect(localPath(p.PostFormValue("next")))
}

// localPath returns the path of a page of the console. Any other address is replaced, so that a link to the login
// cannot lead to another site.
func localPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || path.Clean(u.Path) != u.Path || u.Path != "/console" && !strings.HasPrefix(u.Path, "/console/") {
		return "/console"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}
