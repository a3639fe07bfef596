package fn

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/task"
)

// Handler returns the http.Handler that serves the functions, for Serve or for httptest. Handler fails
// if a setting or a route is bad, or if two functions have the same name or conflicting patterns.
func Handler(env *Env, functions ...Function) (http.Handler, error) {
	built, err := build(env, functions)
	if err != nil {
		return nil, err
	}
	return newMux(env, built)
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

// pageAPI returns the API that the pages of these functions call: m if m serves all functions, else another mux that
// also has the routes of functions with inProcess.
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

// add registers a route. If the pattern is malformed or conflicts with another one, ServeMux panics; add
// returns an error instead. It also returns an error if the timeout is not positive or too long.
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
	if p.stream != nil {
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
	runtime.Gosched() // otherwise pipelined requests of one connection would run for 10 ms before those of other connections
	boundWrites(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	lastOfConnection := httpserver.CountRequest(r.Context()) // after many requests without a known caller
	// If the context has ended, all later calls over the connection would be cancelled.
	if lastOfConnection || m.env.limiter.isDraining() || r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if m.probeOrScrape(w, r) || m.preflight(w, r) {
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
	req.fail(task.Refuse(codeMethodNotAllowed, "this path accepts "+strings.Join(allowed, ", ")))
}

// boundWrites sets the write deadline of a response, unless the server does so because it has a WriteTimeout.
func boundWrites(w http.ResponseWriter, r *http.Request) {
	host, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && host.WriteTimeout == 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(httpserver.WriteTimeout)) // fails on a connection that has ended
	}
}

func (p *mountedRoute) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	limiter := p.mux.env.limiter
	entered := limiter.begin()
	if entered {
		defer limiter.end() // runs after all other defers: the drain ends when no call is counted
	}
	req := newRequest(p.mux.env, w, r, p)
	defer func() { req.call.memory.release() }()
	defer req.end()
	if !entered {
		req.fail(task.Busy("this instance is about to end, try again"))
		return
	}
	defer req.releaseSlot() // only after the response is written: a client may read it slowly
	if p.page != nil {
		if err := req.page(p); err != nil {
			req.fail(err)
		}
		return
	}
	data, err := req.run(r.Context(), p)
	req.respond(data, err)
}
