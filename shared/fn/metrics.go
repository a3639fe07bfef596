package fn

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// scrape responds to a GET of /metrics on the port of the calls, and says whether it
// was there.
func (m *mux) scrape(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case m.env.Config.MetricsPort() != "":
		return false // no such path here
	case m.env.Config.Metrics == settings.MetricsForAdmin:
		req := newRequest(m.env, w, r, nil)
		caller, err := req.authenticate(r.Context(), false)
		req.call.Caller = caller
		if err == nil && !req.call.May(Admin) {
			err = task.Refuse(task.CodeForbidden, "this needs the role "+string(Admin))
		}
		if err != nil {
			defer req.end()
			req.fail(err)
			return true
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	discardBody(w, r)
	m.env.Metrics().ServeHTTP(w, r)
	return true
}
