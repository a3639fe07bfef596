package fn

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// mux calls the routes of the functions that this process serves, one or all. A path gets the
// same response in both cases.
type mux struct {
	env      *Env
	patterns *http.ServeMux
	methods  []string // of all routes, sorted
	origins  *originCheck

	pageOrigins *originCheck // of pages: they trust no other origin
	api         http.Handler // the API that pages use, see Visit.API

	alive, ready func() error // for /healthz and /readyz, which show the error to everybody
}

func newMux(env *Env, functions []builtFunction) (*mux, error) {
	origins, err := newOriginCheck(env.Config.Origins)
	if err != nil {
		return nil, err
	}
	m := &mux{env: env, patterns: http.NewServeMux(), origins: origins, pageOrigins: &originCheck{}, alive: alive, ready: env.checkReady}
	if m.api, err = m.pageAPI(functions); err != nil {
		return nil, err
	}
	for _, f := range functions {
		if f.inProcess {
			continue
		}
		for _, pattern := range slices.Sorted(maps.Keys(f.routes)) {
			p := &mountedRoute{Route: f.routes[pattern], mux: m, function: f.name, pattern: pattern}
			if err := m.add(p); err != nil {
				return nil, fmt.Errorf("function %s: %w", f.name, err)
			}
		}
	}
	slices.Sort(m.methods)
	m.methods = slices.Compact(m.methods)
	return m, nil
}

// pageAPI returns the API that the pages of these functions call: m, or another mux if some of the functions are only
// for the pages.
func (m *mux) pageAPI(functions []builtFunction) (http.Handler, error) {
	if !slices.ContainsFunc(functions, func(f builtFunction) bool { return f.inProcess }) {
		return m, nil
	}
	all := slices.Clone(functions)
	for i := range all {
		all[i].inProcess = false
	}
	return newMux(m.env, all)
}

// add registers a route. It returns an error for a malformed or conflicting pattern, about which
// ServeMux panics.
func (m *mux) add(p *mountedRoute) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pattern %q: %v", p.pattern, r)
		}
	}()
	if !validPattern(p.pattern) {
		return fmt.Errorf("pattern %q is not a method and a full path", p.pattern)
	}
	longest := maxTimeout
	if p.stream {
		longest = maxStream
	}
	if p.timeout <= 0 || p.timeout > longest {
		return fmt.Errorf("pattern %q: timeout %v is not between 0 and %v", p.pattern, p.timeout, longest)
	}
	m.patterns.Handle(p.pattern, p)
	method, _, _ := strings.Cut(p.pattern, " ")
	m.methods = append(m.methods, method)
	return nil
}

func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	runtime.Gosched() // otherwise pipelined requests of one connection would run for 10 ms before those of others
	boundWrites(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// After a failed read the context of the connection is cancelled, and so would be all later calls over it.
	if httpserver.CountRequest(r.Context()) || m.env.limiter.isDraining() || r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if m.health(w, r) || m.preflight(w, r) {
		return
	}
	if p := m.find(r, r.Method); p != nil {
		if p.allowsOtherOrigins() {
			m.allowOrigin(w.Header(), r)
		}
		if strings.Contains(p.pattern, "{") {
			m.patterns.ServeHTTP(w, r) // calls p, and sets the path values
		} else {
			p.ServeHTTP(w, r)
		}
		return
	}
	req := newRequest(m.env, w, r, nil)
	defer req.end()
	var allowed []string
	for _, method := range m.methods {
		if m.find(r, method) != nil {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		req.fail(task.Refuse(task.CodeNotFound, "there is no such path"))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	req.fail(task.Refuse(codeMethodNotAllowed, "this path takes "+strings.Join(allowed, ", ")))
}

// boundWrites sets the write deadline of a response, unless the server of r does it.
func boundWrites(w http.ResponseWriter, r *http.Request) {
	host, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && host.WriteTimeout == 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(httpserver.WriteTimeout)) // fails on a connection that has ended
	}
}

// find returns the route of r's path for a method, nil if there is none. ServeMux itself would
// redirect unclean paths, which loses the body of a POST, and call GET routes for HEAD, some of
// which change state.
func (m *mux) find(r *http.Request, method string) *mountedRoute {
	clean := path.Clean(r.URL.Path)
	slash := r.URL.Path == clean+"/" // accepted for pages: people type it
	if method == http.MethodHead || clean != r.URL.Path && !slash {
		return nil
	}
	if method != r.Method {
		other := *r
		other.Method = method
		r = &other
	}
	h, _ := m.patterns.Handler(r)
	p, _ := h.(*mountedRoute)
	if slash && p != nil && p.page == nil {
		return nil
	}
	return p
}

func (p *mountedRoute) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	limiter := p.mux.env.limiter
	entered := limiter.begin()
	if entered {
		defer limiter.end() // last: a process that drains waits for it
	}
	req := newRequest(p.mux.env, w, r, p)
	defer func() { req.call.memory.release() }()
	defer req.end()
	if !entered {
		req.fail(Busy("this instance is about to end, try again"))
		return
	}
	defer req.releaseSlot() // not before the response is written, which a client may read slowly
	if p.page != nil {
		if err := req.page(p); err != nil {
			req.fail(err)
		}
		return
	}
	data, err := req.run(r.Context(), p)
	req.respond(data, err)
}

// acquireSlot acquires a slot for the call, whose caller must be set.
func (req *request) acquireSlot(p *mountedRoute) (err error) {
	if req.call.slot, err = req.env.limiter.acquireSlot(req.call.Caller, p.event, p.stream); err == nil {
		req.releaseConnection = httpserver.KeepConnectionOpen(req.r.Context())
	}
	return err
}

func (req *request) releaseSlot() {
	if req.call.slot != nil {
		req.call.slot.release()
		req.releaseConnection()
	}
}

// readBodyWithoutSlot reads the body while other calls may use the call's slot. Then it calls recheck, as the caller may
// have been revoked or changed meanwhile, and acquires a slot again.
func (req *request) readBodyWithoutSlot(ctx context.Context, p *mountedRoute, recheck func(context.Context) error) error {
	if req.r.Body == nil || req.r.Body == http.NoBody {
		return req.readBody(ctx, p)
	}
	keepConnection := req.call.slot.startReading()
	if !keepConnection {
		req.releaseConnection()
		req.releaseConnection = func() {}
	}
	if err := req.readBody(ctx, p); err != nil {
		return err
	}
	if err := recheck(ctx); err != nil {
		return err
	}
	if err := req.call.slot.endReading(); err != nil {
		return err
	}
	if !keepConnection {
		req.releaseConnection = httpserver.KeepConnectionOpen(req.r.Context())
	}
	return nil
}

// run does the steps of a call in the order of the package comment, and returns the result of the handler.
func (req *request) run(ctx context.Context, p *mountedRoute) (any, error) {
	if err := p.mux.origins.check(req.r, p.changesState); err != nil {
		return nil, err
	}
	caller, err := req.authenticateFor(ctx, p)
	if err != nil {
		return nil, err
	}
	req.call.Caller = caller
	if err := req.call.admitted(); err != nil {
		return nil, err
	}
	if err := req.acquireSlot(p); err != nil {
		return nil, err
	}
	if req.call.memory, err = req.env.budget.enter(caller.QuotaName(), req.call.May(Admin), p.event); err != nil {
		return nil, err
	}
	recheck := func(ctx context.Context) error {
		_, err := req.call.Recheck(ctx)
		return err
	}
	if err := req.readBodyWithoutSlot(ctx, p, recheck); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if !p.event { // the work for an event concerns many callers
		ctx = store.WithCaller(ctx, req.call.Caller.Account())
	}
	if p.paged {
		if err := req.call.memory.reserve(ctx, 0, true); err != nil {
			return nil, err
		}
		ctx = store.WithMeter(ctx, func(bytes int) error { return req.call.memory.tryReserve(rowFactor * int64(bytes)) })
	}
	switch {
	case p.socket != nil && isUpgrade(req.r.Header):
		return nil, req.socket(ctx, p)
	case p.stream:
		return nil, req.stream(ctx, p)
	}
	return p.handle(ctx, &req.call)
}

// Handler returns the http.Handler that serves the functions, for Serve, or for httptest. It
// fails if a setting is bad, or if two functions have the same name or conflicting patterns.
func Handler(env *Env, functions ...Function) (http.Handler, error) {
	built, err := build(env, functions)
	if err != nil {
		return nil, err
	}
	return newMux(env, built)
}
