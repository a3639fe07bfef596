package fn

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/store"
)

// newDatabaseProbe returns a check of the database. It runs at most once a second, so that
// probes do not load the database.
func newDatabaseProbe(ping func(context.Context) error) *cache.Value[struct{}] {
	return &cache.Value[struct{}]{Timeout: 2 * time.Second, Read: func(ctx context.Context) (struct{}, error) { return struct{}{}, ping(ctx) }}
}

// alive never fails: a process that responds is alive.
func alive() error { return nil }

// checkReady fails while calls would get 503.
func (e *Env) checkReady() error {
	if e.limiter.isDraining() {
		return errors.New("draining")
	}
	switch _, err := e.database.Get(); {
	case errors.Is(err, store.ErrRoleSettings):
		return errors.New("settings of the database role changed: run migrate")
	case err != nil:
		return errors.New("database away")
	}
	return nil
}

// health responds to the probes of a platform, scrapes included, and says whether r
// was one. Probes need no password, which a scrape may need (SENDONCE_METRICS), and
// are neither logged nor counted.
func (m *mux) health(w http.ResponseWriter, r *http.Request) bool {
	var trouble error
	switch r.URL.Path {
	case "/healthz":
		trouble = m.alive()
	case "/readyz":
		trouble = m.ready()
	default:
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return m.scrape(w, r)
		}
		if m.env.metricsAt(r.URL.Path) == nil {
			return false
		}
	}
	status, word := http.StatusOK, "ok"
	if trouble != nil {
		status, word = http.StatusServiceUnavailable, trouble.Error()
	}
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		status, word = http.StatusMethodNotAllowed, "method not allowed"
	}
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	h.Set("Content-Type", contentTypeJSON)
	h.Set("Cache-Control", "no-store")
	discardBody(w, r)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": word}) // a prober that left needs no response
	return true
}
