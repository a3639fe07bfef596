package fn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// sessionAAD is the additional authenticated data of an encrypted session, so no other encrypted secret can
// be used as a session.
const sessionAAD = "session of a browser"

// ErrNoSessionKey means that nobody can log in to the console.
var ErrNoSessionKey = errors.New("SENDONCE_ENCRYPTION_KEYS is not set: without a key there are no sessions")

// LogIn authenticates the visitor and sets the cookie of the session. The error is ErrNoSessionKey or one of
// auth.Authenticator.Authenticate.
func (v *Visit) LogIn(ctx context.Context, w http.ResponseWriter, name, password string) error {
	if v.req.env.sessionKeys.IsEmpty() {
		return ErrNoSessionKey
	}
	login := auth.Login{Name: name, Password: password, Address: httpserver.ClientNetwork(v.req.call.SourceIP), Began: v.req.start}
	if _, err := v.req.env.auth.Authenticate(ctx, login); err != nil {
		return err
	}
	text, err := json.Marshal(v.req.env.auth.SessionOf(name, password, v.req.start.Add(auth.SessionTime)))
	if err != nil {
		return err
	}
	value, err := v.req.env.sessionKeys.Encrypt(sessionAAD, string(text))
	if err != nil {
		return err
	}
	cookie := sessionCookie(v.Request)
	cookie.Value, cookie.MaxAge = value, int(auth.SessionTime/time.Second)
	http.SetCookie(w, cookie)
	v.req.call.Caller.Name = name // for the log; pageWriter.begin then takes the visitor for logged in
	return nil
}

// LogOut removes the cookie of the session. A copy of the cookie stays valid until the session expires.
func (v *Visit) LogOut(w http.ResponseWriter) {
	cookie := sessionCookie(v.Request)
	cookie.MaxAge = -1
	http.SetCookie(w, cookie)
}

// sessionCookie returns the cookie of sessions, without a value. Browsers accept a name that begins with __Host-
// only with Secure. Some browsers do not accept Secure over plain HTTP, even from this machine.
func sessionCookie(r *http.Request) *http.Cookie {
	c := &http.Cookie{Name: "__Host-sendonce", Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if !IsHTTPS(r) && IsLoopback(r.Host) {
		c.Name, c.Secure = "sendonce", false
	}
	return c
}

// IsHTTPS reports whether the browser uses HTTPS, to this server or to a gateway. A client that sends a false
// header harms only itself.
func IsHTTPS(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// IsLoopback reports whether the host of a request, with or without a port, is this machine.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback()
}

// resumeSession sets the caller of the call to the caller of the session in the cookie; without a valid
// session, to the zero Caller.
func (req *request) resumeSession(ctx context.Context) (err error) {
	req.call.Caller, err = req.callerOfSession(ctx)
	return err
}

// callerOfSession returns the caller of the first cookie with a valid session. There may be several cookies: a server
// on another port of this machine can set one of the same name.
func (req *request) callerOfSession(ctx context.Context) (callers.Caller, error) {
	for _, cookie := range req.r.CookiesNamed(sessionCookie(req.r).Name) {
		text, err := req.env.sessionKeys.Decrypt(sessionAAD, cookie.Value)
		if err != nil {
			continue // the cookie was changed, or its key was removed from the settings
		}
		var s auth.Session
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return callers.Caller{}, fmt.Errorf("session: %w", err)
		}
		caller, err := req.env.auth.Resume(ctx, s)
		if !errors.Is(err, auth.ErrCredentials) {
			return caller, err
		}
	}
	return callers.Caller{}, nil
}
