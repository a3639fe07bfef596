package fn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/store/callers"
)

const (
	pageTimeout = 20 * time.Second
	maxForm     = 256 << 10 // bytes of a form
	pageMemory  = 512 << 10 // bytes that a page of a caller is charged, in addition to the calls that it makes

	// For visitors who are not logged in. Each address has its own limit, so none can keep others from the login.
	anonymousPages      = 256 // at once
	anonymousPerAddress = 8   // more of one address wait
	anonymousWait       = 2 * time.Second
	anonymousPageTime   = 20 * time.Second // for reading the response, from its beginning
	maxAnonymousForm    = 8 << 10
)

// Page returns a route for browsers: handle writes the response, which may be of any type. Everybody may
// request it; handle checks whether the visitor is logged in. Other origins, also those of SENDONCE_STREAM_ORIGINS, may
// send only GET.
func Page(handle func(w http.ResponseWriter, v *Visit)) Route {
	r := newRoute("", nil).MaxBody(maxForm).Timeout(pageTimeout)
	r.roles, r.page = nil, handle
	return r
}

// Visit is a request for a page. It must not be used after the page's handler has returned.
type Visit struct {
	*http.Request
	Caller callers.Caller // Name is "" if the visitor is not logged in

	req *request
	api http.Handler
}

// LoggedIn reports whether the visitor has a valid session.
func (v *Visit) LoggedIn() bool { return v.Caller.Name != "" }

// May reports whether the visitor has the role or is an admin.
func (v *Visit) May(role Role) bool { return v.req.call.HasRole(role) || v.req.call.HasRole(Admin) }

// Log adds attributes to the log line of the visit, as Call.Log does.
func (v *Visit) Log(args ...any) { v.req.call.Log(args...) }

// sessionRow is the additional authenticated data of an encrypted session: no other encrypted secret can be used as one.
const sessionRow = "session of a browser"

// ErrNoSessionKey means that nobody can log in.
var ErrNoSessionKey = errors.New("SENDONCE_ENCRYPTION_KEYS is not set: without a key there are no sessions")

// LogIn authenticates the visitor and sets the cookie of the session. The errors are those of
// auth.Authenticator, and ErrNoSessionKey.
func (v *Visit) LogIn(ctx context.Context, w http.ResponseWriter, name, password string) error {
	if v.req.env.sessionKeys().IsEmpty() {
		return ErrNoSessionKey
	}
	s, err := v.req.env.auth.Begin(ctx, auth.Login{Name: name, Password: password, Address: httpserver.ClientNetwork(v.req.call.SourceIP), Began: v.req.start})
	if err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	value, err := v.req.env.sessionKeys().Encrypt(sessionRow, string(text))
	if err != nil {
		return err
	}
	cookie := sessionCookie(v.Request)
	cookie.Value, cookie.MaxAge = value, int(auth.SessionTime/time.Second)
	http.SetCookie(w, cookie)
	v.req.call.Caller.Name = name // for the log
	return nil
}

// LogOut removes the cookie of the session. A copy of the cookie stays valid until the session expires.
func (v *Visit) LogOut(w http.ResponseWriter) {
	cookie := sessionCookie(v.Request)
	cookie.MaxAge = -1
	http.SetCookie(w, cookie)
}

// sessionCookie returns the session's cookie without its value. Browsers accept the prefix __Host- only with
// Secure, and not all of them accept Secure over plain HTTP, not even from this machine.
func sessionCookie(r *http.Request) *http.Cookie {
	c := &http.Cookie{Name: "__Host-sendonce", Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if !IsHTTPS(r) && IsLoopback(r.Host) {
		c.Name, c.Secure = "sendonce", false
	}
	return c
}

// IsHTTPS reports whether the browser uses HTTPS, to this server or to a gateway. A client that sets the header falsely
// harms only itself.
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

// resumeSession sets the caller of the call to that of the session's cookie, or to the zero Caller.
func (req *request) resumeSession(ctx context.Context) (err error) {
	req.call.Caller, err = req.callerOfSession(ctx)
	return err
}

// callerOfSession returns the caller of the first valid session cookie: a server on another port of this machine can
// set further cookies of the same name.
func (req *request) callerOfSession(ctx context.Context) (callers.Caller, error) {
	for _, cookie := range req.r.CookiesNamed(sessionCookie(req.r).Name) {
		text, err := req.env.sessionKeys().Decrypt(sessionRow, cookie.Value)
		if err != nil {
			continue // changed, or its key was removed from the settings
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

// page handles a request for a page. It returns an error, to be sent as JSON, only if the handler was not called.
func (req *request) page(p *mountedRoute) error {
	if err := p.mux.pageOrigins.check(req.r, p.changesState); err != nil {
		return err
	}
	if err := req.resumeSession(req.r.Context()); err != nil {
		return err
	}
	form, err := req.readForm(req.r.Context(), p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(req.r.Context(), p.timeout)
	defer cancel()
	leave, err := req.enterPage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	w := &pageWriter{ResponseWriter: req.w, req: req}
	w.Header().Set("Cache-Control", "no-store") // a handler may allow more
	r := req.r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(form))
	p.page(w, &Visit{Request: r, Caller: req.call.Caller, req: req, api: p.mux.api})
	if req.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return nil
}

// readForm reads the body before enterPage, so that slow bodies do not keep other visitors out. The session is resumed
// again afterwards, as its caller may have been revoked or changed meanwhile.
func (req *request) readForm(ctx context.Context, p *mountedRoute) ([]byte, error) {
	if req.call.Caller.Name == "" {
		anonymous := *p
		anonymous.maxBody = min(p.maxBody, maxAnonymousForm)
		return req.readUncharged(&anonymous)
	}
	if err := req.acquireSlot(p); err != nil {
		return nil, err
	}
	var err error
	if req.call.memory, err = req.env.budget.enter(req.call.Caller.QuotaName(), req.call.May(Admin), false); err != nil {
		return nil, err
	}
	if err := req.readBodyWithoutSlot(ctx, p, req.resumeSession); err != nil {
		return nil, err
	}
	req.call.memory.pause() // calls that the page makes may be large ones, which would wait for this one
	return req.call.Body, nil
}

// enterPage reserves memory for the page of a visitor who is logged in; it is released with the call. For other visitors
// it acquires one of anonymousPages, which leave releases.
func (req *request) enterPage(ctx context.Context) (leave func(), err error) {
	if req.call.Caller.Name != "" {
		return func() {}, req.call.Reserve(ctx, pageMemory)
	}
	waiting, cancel := context.WithTimeout(ctx, anonymousWait)
	defer cancel()
	done, err := req.env.anonymousSlots.acquire(waiting, httpserver.ClientNetwork(req.call.SourceIP).String())
	if err != nil {
		return nil, Busy("too many requests of this address are in progress, try again")
	}
	if !req.env.anonymousPages.TryAcquire(1) {
		done()
		return nil, Busy("too many visitors who are not logged in, try again")
	}
	return func() { req.env.anonymousPages.Release(1); done() }, nil
}

// pageWriter records the status and the bytes of a page for the log.
type pageWriter struct {
	http.ResponseWriter
	req *request
}

func (w *pageWriter) WriteHeader(status int) {
	if w.req.status == 0 {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// begin bounds how long a visitor who is not logged in may take to read the response.
func (w *pageWriter) begin(status int) {
	w.req.status = status
	if w.req.call.Caller.Name == "" {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(anonymousPageTime)) // fails on a connection that has ended
	}
}

func (w *pageWriter) Write(b []byte) (int, error) {
	if w.req.status == 0 {
		w.begin(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(b)
	w.req.bytes += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *pageWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// inProcessCaller is a key of contexts. The value is the caller for whom a page makes a call; the context of a request
// from outside has none.
type inProcessCaller struct{}

// API calls a route of the API in this process, with the visitor's rights, limits and address, and decodes the
// data of the response into out, unless that is nil. body is encoded as JSON; nil = no body. The error is an *api.Error
// if the route refused the call.
func (v *Visit) API(method, path string, body, out any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the call: %w", err)
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(context.WithValue(v.Context(), inProcessCaller{}, v.Caller), method, path, content)
	if err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	r.RemoteAddr = v.RemoteAddr
	for _, name := range []string{"X-Forwarded-For", "User-Agent"} {
		r.Header[name] = v.Header[name]
	}
	if body != nil {
		r.Header.Set("Content-Type", contentTypeJSON)
	}
	w := &recorder{header: http.Header{}}
	v.api.ServeHTTP(w, r)
	return w.decode(out)
}

// recorder keeps the response of a call in this process.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header         { return w.header }
func (w *recorder) Write(b []byte) (int, error) { return w.body.Write(b) }
func (w *recorder) WriteHeader(status int)      { w.status = status }

func (w *recorder) decode(out any) error {
	if w.status == http.StatusNoContent {
		return nil
	}
	envelope := struct {
		api.Envelope
		Data json.RawMessage `json:"data"`
	}{}
	if err := json.Unmarshal(w.body.Bytes(), &envelope); err != nil {
		return fmt.Errorf("decode the response of status %d: %w", w.status, err)
	}
	if w.status/100 != 2 {
		return &api.Error{Status: w.status, Code: envelope.Error, Message: envelope.Message, Fields: envelope.Fields}
	}
	if out == nil || len(envelope.Data) == 0 {
		return nil
	}
	return json.Unmarshal(envelope.Data, out)
}
