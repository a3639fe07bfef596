package fn

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sendonce/sendonce/shared/store"
)

// alive never fails: a process that responds is alive.
func alive() error { return nil }

// checkReady fails during the drain, and while the ping of the database fails (see store.DB.Ping).
func (e *Env) checkReady() error {
	if e.limiter.isDraining() {
		return errors.New("draining")
	}
	switch _, err := e.databaseProbe.Get(); {
	case errors.Is(err, store.ErrRoleSettings):
		return errors.New("settings of the database role changed: run migrate")
	case errors.Is(err, store.ErrReadOnly):
		return err
	case err != nil:
		return errors.New("database away")
	}
	return nil
}

// probeOrScrape responds to r if r is for the path of a probe or of metrics, and reports whether it has
// responded. Probes need no password, a scrape may need one (SENDONCE_METRICS). Only a scrape that is
// refused for its credentials is logged and counted.
func (m *mux) probeOrScrape(w http.ResponseWriter, r *http.Request) bool {
	var problem error
	switch r.URL.Path {
	case "/healthz":
		problem = m.alive()
	case "/readyz":
		problem = m.ready()
	default:
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return m.scrape(w, r)
		}
		if m.env.metricsAt(r.URL.Path) == nil {
			return false
		}
	}
	status, text := http.StatusOK, "ok"
	if problem != nil {
		status, text = http.StatusServiceUnavailable, problem.Error()
	}
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		status, text = http.StatusMethodNotAllowed, "method not allowed"
	}
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	h.Set("Content-Type", contentTypeJSON)
	h.Set("Cache-Control", "no-store")
	limitUnreadBody(w, r)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": text}) // fails if the client has left
	return true
}
