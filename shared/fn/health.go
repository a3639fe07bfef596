package fn

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// databaseProbe asks the database at most once a second, whoever asks: its lock makes
// all who come meanwhile wait for the one answer.
type databaseProbe struct {
	ping func(context.Context) error

	mu      sync.Mutex
	checked time.Time
	err     error
}

func (p *databaseProbe) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.checked) < time.Second {
		return p.err
	}
	// Not the context of one prober: if it leaves, all others would see an outage of the
	// database.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	p.err = p.ping(ctx)
	p.checked = time.Now()
	return p.err
}

// alive is said by whatever can answer.
func alive() error { return nil }

// checkReady fails while calls would be answered 503.
func (e *Env) checkReady() error {
	if e.limiter.isDraining() {
		return errors.New("draining")
	}
	switch err := e.database.check(); {
	case errors.Is(err, store.ErrRoleSettings):
		return errors.New("settings of the database role changed: run migrate")
	case err != nil:
		return errors.New("database away")
	}
	return nil
}

// health answers the probes of a platform, scrapes included, and says whether r
// was one. Probes need no password, which a scrape may need (SENDONCE_METRICS), and
// are neither logged nor counted.
func (m *mux) health(w http.ResponseWriter, r *http.Request) bool {
	var trouble error
	switch r.URL.Path {
	case "/healthz":
		trouble = m.alive()
	case "/metrics":
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return m.scrape(w, r)
		}
	case "/readyz":
		trouble = m.ready()
	default:
		return false
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
	_ = json.NewEncoder(w).Encode(map[string]string{"status": word}) // a prober that left needs no answer
	return true
}
