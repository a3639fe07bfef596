package fn

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	metricPrefix = "sendonce_"
	// maxScrapes bounds what callers without a password can make us do at once.
	maxScrapes = 4
	// glanceTimeout is well below the 10 s that a scraper waits by default.
	glanceTimeout = time.Second

	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// Metrics is what this process has counted since its start: what GET /metrics
// shows to anybody. So no label may hold what callers choose: a route stands
// under its pattern, never under its path. All of it may be used by many
// goroutines at once.
type Metrics struct {
	TwoPhase TwoPhaseMetrics

	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	accepted glance[bus.AcceptState]
	scrape   http.Handler
}

// TwoPhaseMetrics says whether acknowledging before saving is worth it, and
// whether Postgres keeps up.
type TwoPhaseMetrics struct {
	AcceptedWrite Timing // from publishing a message to the stream until that has it
	AcceptedAck   Timing // from a call's begin until its `accepted` can be answered
	DBQueue       Timing // how long a message on the saved path waited for Postgres
	SaveLag       Timing // from accepted to saved; shown as quantiles of the last 10 minutes

	PublishFail prometheus.Counter // messages that the stream did not take
	SaveFail    prometheus.Counter // batches that Postgres did not take; they come again
	DeliverFail prometheus.Counter // messages not published to their receiver; they come again
	DupDB       prometheus.Counter // accepted messages whose row was there already

	ReorderByAcceptSeq prometheus.Counter // messages that came after one with a greater accept_seq
	ReorderByFrom      prometheus.Counter // those of them whose predecessor was of the same sender
}

// Timing takes durations and shows them in milliseconds.
type Timing struct{ ms prometheus.Observer }

// Observe counts one duration. A negative one, which two machines' clocks can
// make, counts as 0.
func (t Timing) Observe(d time.Duration) {
	t.ms.Observe(float64(max(d, 0)) / float64(time.Millisecond))
}

// OnScrape has scrapes ask for the state of the stream of accepted messages, at
// most once a second and for at most 1 s: bus.Bus.Accepting is made for it. It is
// not shown while ask fails. A later call replaces ask.
func (m *Metrics) OnScrape(ask func(context.Context) (bus.AcceptState, error)) {
	m.accepted.mu.Lock()
	defer m.accepted.mu.Unlock()
	m.accepted.ask = ask
}

func newMetrics(env *Env) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{
		TwoPhase: newTwoPhaseMetrics(r),
		registry: r,
		requests: registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "http_requests_total", Help: "Calls that were answered; route is none for paths that nobody has.",
		}, []string{"function", "route", "status"})),
		seconds: registered(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricPrefix + "http_request_seconds", Help: "Time from a call's begin to its answer, waiting polls included.",
			Buckets: buckets(1),
		}, []string{"function", "route"})),
		accepted: glance[bus.AcceptState]{log: env.Log, what: "the stream of accepted messages"},
	}
	r.MustRegister(live{env, &m.accepted})
	m.scrape = promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(env.Log.Handler(), slog.LevelError), MaxRequestsInFlight: maxScrapes,
	})
	return m
}

func newTwoPhaseMetrics(r *prometheus.Registry) TwoPhaseMetrics {
	timing := func(name, help string) Timing {
		return Timing{registered(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricPrefix + name, Help: help, Buckets: buckets(1000),
		}))}
	}
	count := func(name, help string) prometheus.Counter {
		return registered(r, prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}))
	}
	return TwoPhaseMetrics{
		AcceptedWrite: timing("accepted_write_ms", "Milliseconds until the stream had a message."),
		AcceptedAck:   timing("accepted_ack_ms", "Milliseconds until a message could be acknowledged as accepted."),
		DBQueue:       timing("db_queue_ms", "Milliseconds that a message on the saved path waited for Postgres."),
		SaveLag: Timing{registered(r, prometheus.NewSummary(prometheus.SummaryOpts{
			Name: metricPrefix + "save_lag_ms", Help: "Milliseconds from accepted to saved, over the last 10 minutes.",
			Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001},
			MaxAge:     10 * time.Minute,
		}))},
		PublishFail:        count("publish_fail_total", "Messages that the stream did not take."),
		SaveFail:           count("save_fail_total", "Batches of accepted messages that Postgres did not take."),
		DeliverFail:        count("deliver_fail_total", "Accepted messages that could not be published to their receiver."),
		DupDB:              count("dup_db_total", "Accepted messages whose row was there already."),
		ReorderByAcceptSeq: count("reorder_by_accept_seq_total", "Messages that came after one with a greater accept_seq."),
		ReorderByFrom:      count("reorder_by_from_total", "Messages that came after one of the same sender with a greater accept_seq."),
	}
}

func registered[C prometheus.Collector](r *prometheus.Registry, c C) C {
	r.MustRegister(c)
	return c
}

// buckets go from 0.1 ms, a look-up in the stream, to 10 s, the deadline of
// most routes. They are given in units of which a second has perSecond.
func buckets(perSecond float64) []float64 {
	milliseconds := []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000}
	for i := range milliseconds {
		milliseconds[i] *= perSecond / 1000
	}
	return milliseconds
}

// answered counts a call that is over.
func (m *Metrics) answered(x *exchange) {
	m.requests.WithLabelValues(x.function, x.route, strconv.Itoa(x.status)).Inc()
	m.seconds.WithLabelValues(x.function, x.route).Observe(time.Since(x.start).Seconds())
}

// glance asks at most once a second, whoever scrapes.
type glance[T any] struct {
	log  *slog.Logger
	what string // is asked

	mu    sync.Mutex
	ask   func(context.Context) (T, error) // nil: it concerns nobody here
	asked time.Time
	last  T
	known bool
}

func (l *glance[T]) look() (now T, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ask == nil || time.Since(l.asked) < time.Second {
		return l.last, l.known
	}
	ctx, cancel := context.WithTimeout(context.Background(), glanceTimeout)
	defer cancel()
	var err error
	if l.last, err = l.ask(ctx); err != nil {
		l.log.Warn(l.what+" cannot be asked", "cause", err.Error())
	}
	l.known = err == nil
	l.asked = time.Now()
	return l.last, l.known
}

// telling shows single values.
func telling(ch chan<- prometheus.Metric) func(kind prometheus.ValueType, name, help string, value float64, labels prometheus.Labels) {
	return func(kind prometheus.ValueType, name, help string, value float64, labels prometheus.Labels) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(metricPrefix+name, help, nil, labels), kind, value)
	}
}

// live is what is not counted but looked up at each scrape.
type live struct {
	env      *Env
	accepted *glance[bus.AcceptState]
}

// Describe says nothing: what there is depends on what can be reached.
func (live) Describe(chan<- *prometheus.Desc) {}

// Collect looks everything up.
func (l live) Collect(ch chan<- prometheus.Metric) {
	tell := telling(ch)
	tell(gauge, "http_requests_under_way", "Calls that are being worked on, waiting polls included.", float64(l.env.gate.underWay()), nil)
	tell(counter, "bus_dropped_hints_total", "Wake-ups that could not be sent when they were due.", float64(l.env.bus.Dropped()), nil)
	if l.env.db != nil {
		for pool, s := range l.env.db.Stats() {
			in := prometheus.Labels{"pool": pool}
			for state, n := range map[string]int32{"busy": s.AcquiredConns(), "idle": s.IdleConns(), "connecting": s.ConstructingConns()} {
				tell(gauge, "db_connections", "Connections to Postgres.", float64(n), prometheus.Labels{"pool": pool, "state": state})
			}
			tell(gauge, "db_connections_max", "Connections to Postgres that there may be.", float64(s.MaxConns()), in)
			tell(counter, "db_waits_total", "Times that no connection was idle.", float64(s.EmptyAcquireCount()), in)
			tell(counter, "db_wait_seconds_total", "Time spent waiting for a connection.", s.EmptyAcquireWaitTime().Seconds(), in)
		}
	}
	if b, known := l.accepted.look(); known {
		tell(gauge, "stream_len", "Messages in the stream of accepted messages, saved ones that are kept to recognise repeats included.", float64(b.Messages), nil)
		for durable, n := range b.Pending {
			tell(gauge, "pending", "Accepted messages that a durable has not taken for good.", float64(n), prometheus.Labels{"durable": durable})
		}
	}
}
