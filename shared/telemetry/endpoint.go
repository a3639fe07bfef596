package telemetry

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/metrics"
)

// maxReads limits how many scrapes read the metrics at once, because everyone may scrape if /metrics needs no password.
const maxReads = 4

// Endpoint serves scrapes of the metrics of a registry.
type Endpoint struct {
	Registry *metrics.Registry

	log     *slog.Logger
	reads   chan struct{} // has one element for each running read
	writes  writes
	notSent loglimit.Limit // log lines about responses that were not sent
}

// NewEndpoint returns an endpoint for r. Responses that cannot be sent are logged to log.
func NewEndpoint(r *metrics.Registry, log *slog.Logger) *Endpoint {
	return &Endpoint{Registry: r, log: log, reads: make(chan struct{}, maxReads)}
}

// ServeHTTP responds to a scrape with all metrics. Clients that do not read their response do not
// prevent others from getting theirs.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, ok := e.text()
	if !ok {
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	response := http.NewResponseController(w)
	defer e.writes.begin(response)()
	_, err := w.Write(text)
	if err == nil {
		err = response.Flush() // within the deadline that begin has set
	}
	if err != nil {
		if unlogged, log := e.notSent.Next(); log {
			e.log.Warn("a scrape failed", "cause", err.Error(), "unlogged", unlogged)
		}
	}
}

// text returns all metrics. ok is false if too many calls read them.
func (e *Endpoint) text() (text []byte, ok bool) {
	select {
	case e.reads <- struct{}{}:
		defer func() { <-e.reads }()
		return e.Registry.Text(), true
	default:
		return nil, false
	}
}
