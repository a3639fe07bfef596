package fn

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// Metrics is what this process counts. The first call makes it.
func (e *Env) Metrics() *telemetry.Metrics { return e.metrics() }

func (e *Env) newMetrics() *telemetry.Metrics {
	m := telemetry.New(e.Log)
	m.Registry.Collect(e.collect)
	return m
}

// collect shows the state of this process.
func (e *Env) collect(s *metrics.Scrape) {
	s.Gauge("http_requests_under_way", "Calls that are being worked on, waiting polls included.", float64(e.limiter.countInFlight()))
	for kind, n := range e.limiter.takenSeats() {
		s.Gauge("calls_taken", "Places for calls that are taken, by kind.", float64(n), "kind", kind)
	}
	s.Gauge("memory_budget_used_bytes", "Bytes of SENDONCE_MEMORY_MB that calls hold.", float64(e.budget.inUse()))
	s.Counter("bus_dropped_hints_total", "Wake-ups that could not be sent when they were due.", float64(e.bus.Dropped()))
	s.Counter("bus_denied_total", "Publications and subscriptions that the permissions of NATS did not allow; at most one a minute is logged.", float64(e.bus.Denied()))
	if e.db == nil {
		return
	}
	for pool, n := range e.db.Stats() {
		for state, n := range map[string]int32{"busy": n.AcquiredConns(), "idle": n.IdleConns(), "connecting": n.ConstructingConns()} {
			s.Gauge("db_connections", "Connections to Postgres.", float64(n), "pool", pool, "state", state)
		}
		s.Gauge("db_connections_max", "Connections to Postgres that there may be.", float64(n.MaxConns()), "pool", pool)
		s.Counter("db_waits_total", "Times that no connection was idle.", float64(n.EmptyAcquireCount()), "pool", pool)
		s.Counter("db_wait_seconds_total", "Time spent waiting for a connection.", n.EmptyAcquireWaitTime().Seconds(), "pool", pool)
	}
}

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
	m.env.Metrics().ServeHTTP(w, r)
	return true
}
