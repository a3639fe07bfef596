// Package exporter is the function with the metrics of the whole service, for Prometheus:
//
//	GET /exporter/metrics
//
// All instances of the exporter read the same database and streams, so Prometheus scrapes only one of them. The metrics of each
// process are at /metrics of that process. SENDONCE_METRICS says who may read both paths.
//
// The values from Postgres are those of fn.Env.Snapshot, which the console shows too. While Postgres or NATS is unavailable, its
// metrics keep the last values that this process read; sendonce_exporter_up and the timestamps show that these values are old. At
// most overview.MaxNames (200) queues have a label value of their own, and all other queues share the value "other". The same
// holds for sender apps.
package exporter

import (
	"sync"

	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/overview"
)

// Path is the path of the metrics.
const Path = "/exporter/metrics"

// Function serves the metrics of the whole service.
var Function = fn.HTTP("exporter", New)

// New runs once per cold start and does not use the network. It returns no routes: env.ServeMetrics serves the path, because a
// scrape is no call of the API.
func New(env *fn.Env, _ struct{}) fn.Routes {
	e := &exporter{snapshot: env.Snapshot}
	if env.Bus() != nil {
		e.streams = cachedUsage(env.Bus().StreamUsage)
	}
	r := &metrics.Registry{}
	r.Collect(e.collect)
	env.ServeMetrics(Path, r)
	return nil
}

type exporter struct {
	snapshot func() (overview.Snapshot, error)
	streams  *cache.Value[usage] // nil without NATS
}

func (e *exporter) collect(s *metrics.Scrape) {
	var nats sync.WaitGroup
	var used usage
	var natsErr error
	if e.streams != nil {
		nats.Go(func() { used, natsErr = e.streams.Get() })
	}
	snapshot, err := e.snapshot()
	nats.Wait()

	s.Gauge("build_info", "1, with the version of the exporter.", 1, "version", fn.Version())
	const upHelp = "1 if the last read of the source, postgres or nats, succeeded; 0 = its metrics are old or missing."
	s.Flag("exporter_up", upHelp, err == nil, "source", "postgres")
	if e.streams != nil {
		s.Flag("exporter_up", upHelp, natsErr == nil, "source", "nats")
		showStreams(s, used)
	}
	if !snapshot.At.IsZero() {
		show(s, snapshot)
	}
}
