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

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// mux is a set of functions behind one ServeMux of full paths. The set may be
// one function or all: a path gets the same response in both.
type mux struct {
	env      *Env
	patterns *http.ServeMux
	methods  []string // all that any route has, sorted
	origins  *crossOrigin

	pageOrigins *crossOrigin // of pages: they trust no other origin
	api         http.Handler // the API that pages use, see Visit.API

	alive, ready func() error // for /healthz and /readyz; an error is what they show, to anybody
}

func newMux(env *Env, functions []builtFunction) (*mux, error) {
	origins, err := newCrossOrigin(env.Config.Origins)
	if err != nil {
		return nil, err
	}
	m := &mux{env: env, patterns: http.NewServeMux(), origins: origins, pageOrigins: &crossOrigin{}, alive: alive, ready: env.checkReady}
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

// pageAPI returns the API that the pages of these functions use: m, or another mux if some of the API's
// functions are not served to others by this process.
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

// add turns the mux's panic about a malformed or conflicting pattern into an
// error.
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
	// Requests that wait in the buffer of a connection would otherwise be served for 10 ms before
	// those of other connections.
	runtime.Gosched()
	boundWrites(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The context of a connection is cancelled when reading from it failed. Further calls
	// over it would be cancelled before they begin, so it is closed.
	if isUsedUp(r.Context()) || m.env.limiter.isDraining() || r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if m.health(w, r) {
		return
	}
	if m.preflight(w, r) {
		return
	}
	if p := m.find(r, r.Method); p != nil {
		if p.crossOrigin() {
			m.allowOrigin(w.Header(), r)
		}
		if strings.Contains(p.pattern, "{") {
			m.patterns.ServeHTTP(w, r) // again through the mux: it sets the path values
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

// boundWrites gives a response the time that our server gives each, where the
// server that r came to sets no limit.
func boundWrites(w http.ResponseWriter, r *http.Request) {
	host, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && host.WriteTimeout == 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on a connection that has ended
	}
}

// find is the route for r under a method, nil when there is none. The mux
// alone would redirect unclean paths, which loses the body of a POST, and let
// HEAD in on GET routes, some of which change state.
func (m *mux) find(r *http.Request, method string) *mountedRoute {
	clean := path.Clean(r.URL.Path)
	slash := r.URL.Path == clean+"/" // which some people add to the address of a page
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
		defer limiter.end() // last of all: a process that ends waits for it
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

// acquireSlot acquires a slot for the call. The caller must be known.
func (req *request) acquireSlot(p *mountedRoute) (err error) {
	if req.call.slot, err = req.env.limiter.acquireSlot(req.call.Caller, p.event, p.stream); err == nil {
		req.releaseConnection = KeepConnectionOpen(req.r.Context())
	}
	return err
}

func (req *request) releaseSlot() {
	if req.call.slot != nil {
		req.call.slot.release()
		req.releaseConnection()
	}
}

// readBodyWithoutSlot reads the body. Meanwhile other calls may use the call's slot, and the caller may change: so
// recheck is called after it.
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
		req.releaseConnection = KeepConnectionOpen(req.r.Context())
	}
	return nil
}

// run does one call's steps in their fixed order: from which page, who calls, may
// they, what do they say, what does the function return.
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
	if !p.event { // events are of all callers
		ctx = store.WithCaller(ctx, req.call.Caller.Account())
	}
	if p.pages {
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

// Handler gives everything that stands around the functions as one handler:
// what the binary serves, and what a test puts behind httptest. It fails when
// a setting is bad or two functions claim one pattern.
func Handler(env *Env, functions ...Function) (http.Handler, error) {
	built, err := build(env, functions)
	if err != nil {
		return nil, err
	}
	return newMux(env, built)
}
