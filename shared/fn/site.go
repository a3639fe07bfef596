package fn

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// site is a set of functions behind one ServeMux of full paths. The set may be
// one function or all: a path is answered alike in both.
type site struct {
	env     *Env
	mux     *http.ServeMux
	methods []string // all that any route has, sorted
	origins *crossOrigin

	alive, ready func() error // for /healthz and /readyz; an error is what they show, to anybody
}

// place is a route under its pattern: what the mux finds.
type place struct {
	Route
	site     *site
	function string
	pattern  string
}

func newSite(env *Env, functions []built) (*site, error) {
	origins, err := newCrossOrigin(env.Config.Origins)
	if err != nil {
		return nil, err
	}
	s := &site{env: env, mux: http.NewServeMux(), origins: origins, alive: lives, ready: env.takesCalls}
	for _, f := range functions {
		for _, pattern := range slices.Sorted(maps.Keys(f.routes)) {
			p := &place{Route: f.routes[pattern], site: s, function: f.name, pattern: pattern}
			if err := s.add(p); err != nil {
				return nil, fmt.Errorf("function %s: %w", f.name, err)
			}
		}
	}
	slices.Sort(s.methods)
	s.methods = slices.Compact(s.methods)
	return s, nil
}

// add turns the mux's panic about a malformed or conflicting pattern into an
// error.
func (s *site) add(p *place) (err error) {
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
	s.mux.Handle(p.pattern, p)
	method, _, _ := strings.Cut(p.pattern, " ")
	s.methods = append(s.methods, method)
	return nil
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	boundWrites(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The context of a connection is cancelled when reading from it failed. Further calls
	// over it would be cancelled before they begin, so it is closed.
	if s.env.gate.isDraining() || r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if s.health(w, r) {
		return
	}
	if p := s.find(r, r.Method); p != nil {
		s.mux.ServeHTTP(w, r) // again through the mux: it sets the path values
		return
	}
	x := newExchange(s.env, w, r, nil)
	defer x.end()
	var allowed []string
	for _, method := range s.methods {
		if s.find(r, method) != nil {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		x.fail(task.Refuse(task.CodeNotFound, "there is no such path"))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	x.fail(task.Refuse(codeMethodNotAllowed, "this path takes "+strings.Join(allowed, ", ")))
}

// boundWrites gives an answer the time that our server gives each, where the
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
func (s *site) find(r *http.Request, method string) *place {
	if method == http.MethodHead || path.Clean(r.URL.Path) != r.URL.Path {
		return nil
	}
	if method != r.Method {
		other := *r
		other.Method = method
		r = &other
	}
	h, _ := s.mux.Handler(r)
	p, _ := h.(*place)
	return p
}

func (p *place) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gate := p.site.env.gate
	entered := gate.enter()
	if entered {
		defer gate.leave() // last of all: a process that ends waits for it
	}
	x := newExchange(p.site.env, w, r, p)
	defer func() { x.call.hold.release() }()
	defer x.end()
	if !entered {
		x.fail(busy("this instance is about to end, try again"))
		return
	}
	defer x.leaveSeat() // not before the answer is written, which a client may read slowly
	data, err := x.run(r.Context(), p)
	x.answer(data, err)
}

// takeSeat takes a place for the call, once its caller is known.
func (x *exchange) takeSeat(p *place) (err error) {
	if x.call.seat, err = x.env.gate.takeSeat(x.call.Caller, p.event, p.stream); err == nil {
		x.carried = carry(x.r.Context())
	}
	return err
}

func (x *exchange) leaveSeat() {
	if x.call.seat != nil {
		x.call.seat.leave()
		x.carried()
	}
}

// run does one call's steps in their fixed order: from which page, who calls, may
// they, what do they say, what does the function answer.
func (x *exchange) run(ctx context.Context, p *place) (any, error) {
	if err := p.site.origins.check(x.r, p.changes); err != nil {
		return nil, err
	}
	caller, err := x.authenticate(ctx, p.list)
	if err != nil {
		return nil, err
	}
	x.call.Caller = caller
	if err := x.call.admitted(); err != nil {
		return nil, err
	}
	if err := x.takeSeat(p); err != nil {
		return nil, err
	}
	if x.call.hold, err = x.env.budget.enter(caller.Name, p.event || x.call.May(Admin)); err != nil {
		return nil, err
	}
	if err := x.readBody(ctx, p); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if !p.event { // events are of all callers
		ctx = store.WithCaller(ctx, caller.ID)
	}
	if p.pages {
		if err := x.call.hold.take(ctx, 0, true); err != nil {
			return nil, err
		}
		ctx = store.WithMeter(ctx, func(bytes int) error { return x.call.hold.takeNow(rowFactor * int64(bytes)) })
	}
	switch {
	case p.socket != nil && asksForSocket(x.r.Header):
		return nil, x.socket(ctx, p)
	case p.stream:
		return nil, x.stream(ctx, p)
	}
	return p.handle(ctx, &x.call)
}

func oneOf(roles []Role) string {
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = string(role)
	}
	return strings.Join(names, " or ")
}
