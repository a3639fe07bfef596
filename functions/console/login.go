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
	Insecure            bool // plain HTTP to another machine: a browser does not keep the session
}

func (p *page) showLogin(status int, problem string) error {
	return p.render(status, "login", p.T("Log in"), loginPage{
		Name: p.PostFormValue("name"), Next: localPath(p.FormValue("next")), Problem: problem, Insecure: !fn.IsHTTPS(p.Request) && !fn.IsLoopback(p.Host),
	})
}

func (p *page) loginForm() error {
	if p.LoggedIn() {
		return p.redirect("/console")
	}
	return p.showLogin(http.StatusOK, "")
}

// logIn starts a session. Tries with wrong passwords are limited and delayed as in calls of the API.
func (p *page) logIn() error {
	if err := p.ParseForm(); err != nil {
		return p.showLogin(http.StatusBadRequest, p.T("The form is malformed."))
	}
	err := p.LogIn(p.Context(), p.w, p.PostFormValue("name"), p.PostFormValue("password"))
	var refused *task.Error
	switch {
	case err == nil:
		return p.redirect(localPath(p.PostFormValue("next")))
	case errors.Is(err, fn.ErrNoSessionKey):
		return p.showLogin(http.StatusServiceUnavailable, p.T("Nobody can log in: SENDONCE_ENCRYPTION_KEYS must be set for this function."))
	case !errors.As(err, &refused):
		return err
	case refused.RetryAfter > 0:
		return p.showLogin(http.StatusTooManyRequests, p.T("Too many failed logins, or the service is busy. Try again in a moment."))
	}
	return p.showLogin(http.StatusUnauthorized, p.T("The name or the password is wrong."))
}

func (p *page) logOut() error {
	p.LogOut(p.w)
	return p.redirect("/console/login")
}

func (p *page) setLanguage() error {
	if language := p.PostFormValue("language"); htmlLanguages[language] != "" {
		http.SetCookie(p.w, &http.Cookie{Name: languageCookie, Value: language, Path: "/console", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	}
	return p.redirect(localPath(p.PostFormValue("next")))
}

// localPath returns the address if it is a page of the console, else the address of the overview. So a login or a form cannot redirect
// to another site.
func localPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || path.Clean(u.Path) != u.Path || u.Path != "/console" && !strings.HasPrefix(u.Path, "/console/") {
		return "/console"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}
