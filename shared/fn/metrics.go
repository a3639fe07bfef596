package fn

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// ProcessMetrics is the path of the metrics of the process itself.
const ProcessMetrics = "/metrics"

// ServeMetrics serves the metrics of r at a path of their own, on the same port and for the same callers as
// ProcessMetrics. A function calls it when it is built, not in a call.
func (e *Env) ServeMetrics(path string, r *metrics.Registry) {
	e.metricsEndpoints.Store(path, telemetry.NewEndpoint(r, e.Log))
}

// metricsAt returns the handler of the scrapes at a path; nil = the path has no metrics.
func (e *Env) metricsAt(path string) http.Handler {
	if path == ProcessMetrics {
		return e.Metrics()
	}
	if endpoint, ok := e.metricsEndpoints.Load(path); ok {
		return endpoint.(*telemetry.Endpoint)
	}
	return nil
}

// scrape responds to a scrape on the port of the API. It returns false if this port has no metrics at the path.
func (m *mux) scrape(w http.ResponseWriter, r *http.Request) bool {
	endpoint := m.env.metricsAt(r.URL.Path)
	switch {
	case endpoint == nil:
		return false
	case m.env.Config.MetricsPort() != "":
		return false // metrics are on their own port
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
	serveScrape(w, r, endpoint)
	return true
}

func serveScrape(w http.ResponseWriter, r *http.Request, endpoint http.Handler) {
	w.Header().Set("Cache-Control", "no-store")
	limitUnreadBody(w, r)
	endpoint.ServeHTTP(w, r)
}
