// Package exporter is the function that shows the state of the service to Prometheus:
//
//	GET /exporter/metrics
//
// These metrics are about the database and the streams, which all processes share, so one instance is scraped and
// no other. What a process counts itself is at its own /metrics. Both are protected by SENDONCE_METRICS.
//
// The values are those of fn.Env.Snapshot, which the console shows too. While Postgres or NATS is unavailable, the last
// values are shown, and sendonce_exporter_up and the timestamps show that they are old. The number of label values is
// limited: overview.MaxNames queues and sender apps have one each, and all others share one.
package exporter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/overview"
)

// Path is what Prometheus scrapes.
const Path = "/exporter/metrics"

// Function serves the state of all queues to Prometheus.
var Function = fn.HTTP("exporter", New)

// New runs once per cold start and does not touch the network. The function has no routes: scrapes are not calls of the API.
func New(env *fn.Env, _ struct{}) fn.Routes {
	e := &exporter{snapshot: env.Snapshot}
	if env.Bus() != nil {
		e.streams = newStreams(env.Bus().StreamUsage)
	}
	r := metrics.New("sendonce_")
	r.Collect(e.collect)
	env.ServeMetrics(Path, r)
	return nil
}

const (
	streamsTimeout = 4 * time.Second
	streamsCached  = 5 * time.Second
)

type exporter struct {
	snapshot func() (overview.Snapshot, error)
	streams  *streams // nil without NATS
}

// streams reads how much of each stream is used.
type streams struct {
	current cache.Value[struct{}] // limits how often streams are read; its result is in last
	last    atomic.Pointer[usage] // of the last read that succeeded; nil = none yet
}

type usage struct {
	at   time.Time
	used map[string]float64 // by stream, 0 to 1
}

func newStreams(read func(context.Context) (map[string]float64, error)) *streams {
	s := &streams{}
	s.current.Timeout, s.current.Keep = streamsTimeout, streamsCached
	s.current.Read = func(ctx context.Context) (none struct{}, err error) {
		used, err := read(ctx)
		if err == nil {
			s.last.Store(&usage{time.Now(), used})
		}
		return none, err
	}
	return s
}

// read returns the usage of the last read that succeeded, and whether it is current.
func (s *streams) read() (u usage, current bool) {
	_, err := s.current.Get()
	if last := s.last.Load(); last != nil {
		u = *last
	}
	return u, err == nil
}

func (e *exporter) collect(s *metrics.Scrape) {
	var both sync.WaitGroup
	var used usage
	var natsUp bool
	if e.streams != nil {
		both.Go(func() { used, natsUp = e.streams.read() })
	}
	snapshot, err := e.snapshot()
	both.Wait()

	s.Gauge("build_info", "1, with the version of the exporter.", 1, "version", fn.Version())
	const upHelp = "Whether the newest values of postgres and nats could be read."
	s.Gauge("exporter_up", upHelp, flag(err == nil), "source", "postgres")
	if e.streams != nil {
		s.Gauge("exporter_up", upHelp, flag(natsUp), "source", "nats")
		showStreams(s, used)
	}
	if !snapshot.At.IsZero() {
		show(s, snapshot)
	}
}
