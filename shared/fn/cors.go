package fn

import (
	"net/http"
	"slices"
	"strings"
)

// The headers that a web page of another origin may send and read, in addition to those that every page may.
const (
	corsRequestHeaders  = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id"
	corsResponseHeaders = "Idempotency-Replayed, Location, Retry-After, X-Request-Id"
	corsMaxAge          = "600" // seconds that a browser keeps the response to a preflight
)

// allowOrigin reports whether the request comes from a page of an allowed origin, and lets such a page read the
// response. SENDONCE_STREAM_ORIGINS has the allowed origins, for the whole API and not only for streams.
// Access-Control-Allow-Credentials is never sent: such a page itself sends its credentials, and the browser adds none.
func (m *mux) allowOrigin(h http.Header, r *http.Request) bool {
	if len(m.env.Config.Origins) == 0 {
		return false
	}
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.ContainsFunc(m.env.Config.Origins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", corsResponseHeaders)
	return true
}

// preflight responds to a preflight: a request in which a browser asks whether a page of another origin may call a
// route. If the page may not call the route, or if r is not a preflight, preflight writes no response and returns
// false.
func (m *mux) preflight(w http.ResponseWriter, r *http.Request) bool {
	method := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || method == "" {
		return false
	}
	p := m.find(r, method)
	if p == nil || !p.allowsOtherOrigins() || !m.allowOrigin(w.Header(), r) {
		return false
	}
	w.Header().Set("Access-Control-Allow-Methods", method)
	w.Header().Set("Access-Control-Allow-Headers", corsRequestHeaders)
	w.Header().Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// allowsOtherOrigins reports whether pages of other origins may call the route. They may call every route of the API
// except those of CloudEvents, but no page of the console (p.page).
func (p *mountedRoute) allowsOtherOrigins() bool { return p.page == nil && !p.event }
