package fn

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/webhooks"
)

const (
	// maxScrapes bounds the scrapes at once, as they may need no password.
	maxScrapes = 4
	// gaugeTimeout is well below the 10 s that a scraper waits by default.
	gaugeTimeout = time.Second
)

// Buckets go from 0.1 ms, reading one message of a stream, to 10 s, the deadline of most
// routes.
var (
	millisecondBuckets = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000}
	secondBuckets      = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
	lagBuckets         = append(millisecondBuckets[4:len(millisecondBuckets):len(millisecondBuckets)], 30_000, 60_000, 300_000, 900_000, 3_600_000)
)

// Metrics is what this process has counted since its start: what GET /metrics shows, to
// anybody if SENDONCE_METRICS says so. So no label may hold text that callers choose: a
// route is shown by its pattern, never by its path. All of it may be used by several
// goroutines.
type Metrics struct {
	TwoPhase      TwoPhaseMetrics
	Archive       ArchiveMetrics
	WebhookFailed *metrics.Counter // calls of webhooks and callbacks that were not answered 2xx

	log       *slog.Logger
	registry  *metrics.Registry
	requests  *metrics.Counter
	durations *metrics.Histogram
	accepted  cachedGauge[bus.AcceptState]
	endpoints cachedGauge[webhooks.UnhealthyEndpoints]
	streams   cachedGauge[[]string]
	scrapes   chan struct{} // has one for each that is under way
}

// TwoPhaseMetrics show whether acknowledging before saving is worth it, and whether
// Postgres keeps up.
type TwoPhaseMetrics struct {
	AcceptedWrite Timing // from publishing a message to the stream until it is stored there
	AcceptedAck   Timing // from the start of a call until its `accepted` can be answered
	DBQueue       Timing // how long a message on the saved path waited for Postgres
	SaveLag       Timing // from accepted to saved

	PublishFail *metrics.Counter // messages that the stream did not take
	SaveFail    *metrics.Counter // batches that Postgres did not take; they come again
	DeliverFail *metrics.Counter // messages not published to their receiver; they come again
	DupDB       *metrics.Counter // accepted messages whose row existed already

	ReorderByAcceptSeq *metrics.Counter // messages that came after one with a greater accept_seq
	ReorderByFrom      *metrics.Counter // those of them whose predecessor was of the same sender
}

// ArchiveMetrics count what left the main tables, by table.
type ArchiveMetrics struct {
	Rows   *metrics.Counter // moved to an archive table, or deleted
	Failed *metrics.Counter // rows that the database refused to archive, each time
}

// Timing counts durations in milliseconds.
type Timing struct{ milliseconds *metrics.Histogram }

// Observe counts one duration. A negative one, which the clocks of two machines can make,
// counts as 0.
func (t Timing) Observe(d time.Duration) {
	t.milliseconds.Observe(float64(max(d, 0)) / float64(time.Millisecond))
}

// OnScrape has scrapes show the stream of accepted messages, which read reads at most once
// a second and for at most 1 s. It is not shown while read fails. A later call replaces read.
func (m *Metrics) OnScrape(read func(context.Context) (bus.AcceptState, error)) { m.accepted.set(read) }

// OnScrapeEndpoints has scrapes show how many webhook endpoints fail, as OnScrape does.
func (m *Metrics) OnScrapeEndpoints(read func(context.Context) (webhooks.UnhealthyEndpoints, error)) {
	m.endpoints.set(read)
}

// OnScrapeStreams has scrapes show which streams are paused, as OnScrape does.
func (m *Metrics) OnScrapeStreams(read func(context.Context) ([]string, error)) { m.streams.set(read) }

func newMetrics(env *Env) *Metrics {
	r := metrics.New("sendonce_")
	m := &Metrics{
		TwoPhase:      newTwoPhaseMetrics(r),
		WebhookFailed: r.Counter("webhook_failed_total", "Calls of webhooks and callbacks that were not answered with a 2xx."),
		Archive: ArchiveMetrics{
			Rows:   r.Counter("archived_rows_total", "Rows that sweep moved to an archive table, or deleted, because they were old.", "table"),
			Failed: r.Counter("archive_failed_rows_total", "Tries to archive a row that the database refused; the row stays in its table.", "table"),
		},
		log:       env.Log,
		registry:  r,
		requests:  r.Counter("http_requests_total", "Calls that were answered; route is none for paths that nobody has.", "function", "route", "status"),
		durations: r.Histogram("http_request_seconds", "Time from a call's begin to its answer, waiting polls included.", secondBuckets, "function", "route"),
		accepted:  cachedGauge[bus.AcceptState]{log: env.Log, what: "the stream of accepted messages"},
		endpoints: cachedGauge[webhooks.UnhealthyEndpoints]{log: env.Log, what: "the state of webhook endpoints"},
		streams:   cachedGauge[[]string]{log: env.Log, what: "the list of paused streams"},
		scrapes:   make(chan struct{}, maxScrapes),
	}
	r.Collect(env.collect)
	r.Collect(m.collect)
	return m
}

func newTwoPhaseMetrics(r *metrics.Registry) TwoPhaseMetrics {
	timing := func(name, help string, bounds []float64) Timing { return Timing{r.Histogram(name, help, bounds)} }
	return TwoPhaseMetrics{
		AcceptedWrite:      timing("accepted_write_ms", "Milliseconds until the stream had a message.", millisecondBuckets),
		AcceptedAck:        timing("accepted_ack_ms", "Milliseconds until a message could be acknowledged as accepted.", millisecondBuckets),
		DBQueue:            timing("db_queue_ms", "Milliseconds that a message on the saved path waited for Postgres.", millisecondBuckets),
		SaveLag:            timing("save_lag_ms", "Milliseconds from accepted to saved.", lagBuckets),
		PublishFail:        r.Counter("publish_fail_total", "Messages that the stream did not take."),
		SaveFail:           r.Counter("save_fail_total", "Batches of accepted messages that Postgres did not take."),
		DeliverFail:        r.Counter("deliver_fail_total", "Accepted messages that could not be published to their receiver."),
		DupDB:              r.Counter("dup_db_total", "Accepted messages whose row was there already."),
		ReorderByAcceptSeq: r.Counter("reorder_by_accept_seq_total", "Messages that came after one with a greater accept_seq."),
		ReorderByFrom:      r.Counter("reorder_by_from_total", "Messages that came after one of the same sender with a greater accept_seq."),
	}
}

// statusLabel is "none" for a call without an answer. The most frequent status costs no
// allocation.
func statusLabel(status int) string {
	switch status {
	case 0:
		return "none"
	case http.StatusOK:
		return "200"
	}
	return strconv.Itoa(status)
}

// scrape answers with all metrics.
func (m *Metrics) scrape(w http.ResponseWriter) {
	select {
	case m.scrapes <- struct{}{}:
		defer func() { <-m.scrapes }()
	default:
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if err := m.registry.Write(w); err != nil {
		m.log.Warn("a scrape cannot be answered", "cause", err.Error())
	}
}

// cachedGauge is a value that a scrape reads; a failure is logged.
type cachedGauge[T any] struct {
	log    *slog.Logger
	what   string                    // is read, for the log
	source atomic.Pointer[cached[T]] // nil where this process does not show it
}

func (g *cachedGauge[T]) set(read func(context.Context) (T, error)) {
	g.source.Store(&cached[T]{timeout: gaugeTimeout, read: func(ctx context.Context) (T, error) {
		value, err := read(ctx)
		if err != nil {
			g.log.Warn(g.what+" cannot be read", "cause", err.Error())
		}
		return value, err
	}})
}

func (g *cachedGauge[T]) get() (value T, known bool) {
	source := g.source.Load()
	if source == nil {
		return value, false
	}
	value, err := source.get()
	return value, err == nil
}

// collect shows the state of this process.
func (e *Env) collect(s *metrics.Scrape) {
	s.Gauge("http_requests_under_way", "Calls that are being worked on, waiting polls included.", float64(e.limiter.countInFlight()))
	for kind, n := range e.limiter.takenSeats() {
		s.Gauge("calls_taken", "Places for calls that are taken, by kind.", float64(n), "kind", kind)
	}
	s.Gauge("memory_budget_used_bytes", "Bytes of SENDONCE_MEMORY_MB that calls hold.", float64(e.budget.inUse()))
	s.Counter("bus_dropped_hints_total", "Wake-ups that could not be sent when they were due.", float64(e.bus.Dropped()))
	s.Counter("bus_denied_total", "Publications and subscriptions that the permissions of NATS did not allow; at most one a minute is logged.", float64(e.bus.Denied()))
	if e.db == nil {
		return
	}
	for pool, n := range e.db.Stats() {
		for state, n := range map[string]int32{"busy": n.AcquiredConns(), "idle": n.IdleConns(), "connecting": n.ConstructingConns()} {
			s.Gauge("db_connections", "Connections to Postgres.", float64(n), "pool", pool, "state", state)
		}
		s.Gauge("db_connections_max", "Connections to Postgres that there may be.", float64(n.MaxConns()), "pool", pool)
		s.Counter("db_waits_total", "Times that no connection was idle.", float64(n.EmptyAcquireCount()), "pool", pool)
		s.Counter("db_wait_seconds_total", "Time spent waiting for a connection.", n.EmptyAcquireWaitTime().Seconds(), "pool", pool)
	}
}

// collect shows what functions registered.
func (m *Metrics) collect(s *metrics.Scrape) {
	if b, known := m.accepted.get(); known {
		s.Gauge("stream_len", "Messages in the stream of accepted messages, saved ones that are kept to recognise repeats included.", float64(b.Messages))
		for durable, n := range b.Pending {
			s.Gauge("pending", "Accepted messages that a durable has not acknowledged.", float64(n), "durable", durable)
		}
	}
	if n, known := m.endpoints.get(); known {
		for state, n := range map[string]int{"failing": n.Failing, "disabled": n.Disabled} {
			s.Gauge("webhook_endpoints", "Registered webhook endpoints that fail or are disabled.", float64(n), "state", state)
		}
	}
	paused, _ := m.streams.get()
	for _, name := range paused {
		s.Gauge("stream_paused", "1 while a stream takes nothing: it is full, has no leader or does not answer.", 1, "stream", name)
	}
}
