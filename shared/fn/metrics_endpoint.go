package fn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/sendonce/sendonce/shared/task"
)

// The values of SENDONCE_METRICS beside a port.
const (
	metricsForAdmin = "admin"
	metricsForAll   = "open"
)

// metricsConnections is how many connections the port of /metrics alone may have.
const metricsConnections = 32

// metricsPort is the port of /metrics alone; "" when it is on that of the calls.
func (c *Config) metricsPort() string {
	if c.Metrics == metricsForAdmin || c.Metrics == metricsForAll {
		return ""
	}
	return c.Metrics
}

func validMetrics(value string) bool {
	port, err := strconv.ParseUint(value, 10, 16)
	return value == metricsForAdmin || value == metricsForAll || err == nil && port > 0
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

// serveMetrics answers /metrics on its own port, where it has one, until ctx ends.
func (e *Env) serveMetrics(ctx context.Context) error {
	port := e.Config.metricsPort()
	if port == "" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(e.Config.Host, port))
	if err != nil {
		return fmt.Errorf("SENDONCE_METRICS: %w", err)
	}
	e.Log.Info("metrics", "address", l.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		discardBody(w, r)
		e.Metrics().scrape(w)
	})
	server := newBoundedServer(e, mux, metricsConnections)
	context.AfterFunc(ctx, func() { _ = server.http.Close() })
	go func() {
		if err := server.accept(l); !errors.Is(err, http.ErrServerClosed) {
			e.Log.Error("metrics", "cause", err.Error())
		}
	}()
	return nil
}
