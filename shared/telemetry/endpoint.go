package telemetry

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/metrics"
)

const (
	maxReads     = 4               // scrapes that read the metrics at once: everyone may scrape if /metrics needs no password
	maxWrites    = 32              // concurrent responses; each keeps its text in memory
	writeTimeout = 5 * time.Second // of one response
)

// Endpoint serves scrapes of the metrics of a registry.
type Endpoint struct {
	Registry *metrics.Registry

	log     *slog.Logger
	reads   chan struct{} // has one element for each running read
	writes  httpserver.OpenResponses
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
	_ = response.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on a connection that has ended
	if e.writes.Add(w) > maxWrites {
		e.writes.AbortOldest()
	}
	defer e.writes.Remove(w)
	_, err := w.Write(text)
	if err == nil {
		err = response.Flush() // within the deadline
	}
	if err != nil {
		if unlogged, log := e.notSent.Next(); log {
			e.log.Warn("a scrape failed", "cause", err.Error(), "unlogged", unlogged)
		}
	}
}

// text returns all metrics. ok is false if maxReads other calls are reading them.
func (e *Endpoint) text() (text []byte, ok bool) {
	select {
	case e.reads <- struct{}{}:
		defer func() { <-e.reads }()
		return e.Registry.Text(), true
	default:
		return nil, false
	}
}
