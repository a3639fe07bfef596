package fn

import (
	"net/http"
	"path"
)

// mux calls the routes of the functions that this process serves, one or all. A path of a served
// function gets the same response in both cases.
type mux struct {
	env      *Env
	patterns *http.ServeMux
	methods  []string // of all routes, sorted
	origins  *originCheck

	pageOrigins *originCheck // for pages: they trust no other origin, not even those of SENDONCE_STREAM_ORIGINS
	api         http.Handler // the API that pages use, see Visit.API

	alive, ready func() error // for /healthz and /readyz, which show the error to everybody
}

// mountedRoute is a route that is registered in the mux under a pattern.
type mountedRoute struct {
	Route
	mux      *mux
	function string
	pattern  string
}

// find returns the route of r's path for a method; nil = none. Unlike ServeMux, find returns none for a path that
// ServeMux redirects, such as //a, and none for HEAD. The package comment says why.
func (m *mux) find(r *http.Request, method string) *mountedRoute {
	clean := path.Clean(r.URL.Path)
	slash := r.URL.Path == clean+"/" // accepted for pages: people type a slash at the end
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
