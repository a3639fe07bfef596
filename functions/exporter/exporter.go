// Package exporter is the function with the metrics of the whole service, for Prometheus:
//
//	GET /exporter/metrics
//
// These metrics are about the database and the streams, which all processes share, so Prometheus scrapes only one instance. The
// metrics of each process are at its own /metrics. SENDONCE_METRICS protects both.
//
// The values are those of fn.Env.Snapshot, which the console shows too. While Postgres or NATS is unavailable, the metrics keep the
// last values; sendonce_exporter_up and the timestamps show that they are old. overview.MaxNames queues and sender apps have a
// label value of their own, and all others share one.
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

// Path is the path of the metrics.
const Path = "/exporter/metrics"

// Function serves the metrics of the whole service.
var Function = fn.HTTP("exporter", New)

// New runs once per cold start and does not touch the network. It returns no routes, because a scrape is not a call of the API.
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
	current cache.Value[struct{}] // limits how often streams are read; the result of a read is in last
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
	var nats sync.WaitGroup
	var used usage
	var natsUp bool
	if e.streams != nil {
		nats.Go(func() { used, natsUp = e.streams.read() })
	}
	snapshot, err := e.snapshot()
	nats.Wait()

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
