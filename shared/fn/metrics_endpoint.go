package fn

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/task"
)

// metricsPort is the port of /metrics alone; "" when it is on that of the calls.
func (c *Config) metricsPort() string {
	if c.Metrics == metricsForAdmin || c.Metrics == metricsForAll {
		return ""
	}
	return c.Metrics
}

// scrape answers a GET of /metrics on the port of the calls, and says whether it
// was there.
func (m *mux) scrape(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case m.env.Config.metricsPort() != "":
		return false // no such path here
	case m.env.Config.Metrics == metricsForAdmin:
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
	m.env.Metrics().scrape(w)
	return true
}
