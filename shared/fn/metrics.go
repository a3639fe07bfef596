package fn

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store"
)

const (
	// maxScrapes bounds what callers without a password can make us do at once.
	maxScrapes = 4
	// glanceTimeout is well below the 10 s that a scraper waits by default.
	glanceTimeout = time.Second
)

// Metrics is what this process has counted since its start: what GET /metrics
// shows, to anybody if SENDONCE_METRICS says so. So no label may hold what callers choose: a route stands
// under its pattern, never under its path. All of it may be used by many
// goroutines at once.
type Metrics struct {
	TwoPhase      TwoPhaseMetrics
	Archive       ArchiveMetrics
	WebhookFailed *Counter // calls of webhooks and callbacks that were not answered 2xx

	log       *slog.Logger
	calls     *outcomes
	accepted  glance[bus.AcceptState]
	endpoints glance[store.UnhealthyEndpoints]
	streams   glance[[]string]
	scrapes   chan struct{} // has one for each that is under way

	mu      sync.Mutex
	tellers []func(page) // what scrapes ask
}

// TwoPhaseMetrics says whether acknowledging before saving is worth it, and
// whether Postgres keeps up.
type TwoPhaseMetrics struct {
	AcceptedWrite Timing // from publishing a message to the stream until that has it
	AcceptedAck   Timing // from a call's begin until its `accepted` can be answered
	DBQueue       Timing // how long a message on the saved path waited for Postgres
	SaveLag       Timing // from accepted to saved; shown as quantiles of the last 5 to 10 minutes

	PublishFail *Counter // messages that the stream did not take
	SaveFail    *Counter // batches that Postgres did not take; they come again
	DeliverFail *Counter // messages not published to their receiver; they come again
	DupDB       *Counter // accepted messages whose row was there already

	ReorderByAcceptSeq *Counter // messages that came after one with a greater accept_seq
	ReorderByFrom      *Counter // those of them whose predecessor was of the same sender
}

// ArchiveMetrics says what left the main tables, by table.
type ArchiveMetrics struct {
	Rows   *CounterBy // that were moved to an archive table or deleted
	Failed *CounterBy // tries to archive a row that the database refused
}

// Timing takes durations and shows them in milliseconds.
type Timing struct{ ms interface{ observe(float64) } }

// Observe counts one duration. A negative one, which two machines' clocks can
// make, counts as 0.
func (t Timing) Observe(d time.Duration) {
	t.ms.observe(float64(max(d, 0)) / float64(time.Millisecond))
}

// OnScrape has scrapes ask for the state of the stream of accepted messages, at
// most once a second and for at most 1 s: bus.Bus.Accepting is made for it. It is
// not shown while ask fails. A later call replaces ask.
func (m *Metrics) OnScrape(ask func(context.Context) (bus.AcceptState, error)) {
	m.accepted.mu.Lock()
	defer m.accepted.mu.Unlock()
	m.accepted.ask = ask
}

// OnScrapeEndpoints has scrapes ask how many webhook endpoints fail, as OnScrape does.
func (m *Metrics) OnScrapeEndpoints(ask func(context.Context) (store.UnhealthyEndpoints, error)) {
	m.endpoints.mu.Lock()
	defer m.endpoints.mu.Unlock()
	m.endpoints.ask = ask
}

// OnScrapeStreams has scrapes ask which streams are paused, as OnScrape does.
func (m *Metrics) OnScrapeStreams(ask func(context.Context) ([]string, error)) {
	m.streams.mu.Lock()
	defer m.streams.mu.Unlock()
	m.streams.ask = ask
}

func newMetrics(env *Env) *Metrics {
	m := &Metrics{
		log:      env.Log,
		accepted: glance[bus.AcceptState]{log: env.Log, what: "the stream of accepted messages"},
		scrapes:  make(chan struct{}, maxScrapes),
	}
	m.endpoints.log, m.endpoints.what = env.Log, "the state of webhook endpoints"
	m.streams.log, m.streams.what = env.Log, "the list of paused streams"
	m.TwoPhase = newTwoPhaseMetrics(m)
	m.Archive = newArchiveMetrics(m)
	m.WebhookFailed = m.count("webhook_failed_total", "Calls of webhooks and callbacks that were not answered with a 2xx.")
	m.calls = newOutcomes("route",
		described{"http_requests_total", "Calls that were answered; route is none for paths that nobody has."},
		described{"http_request_seconds", "Time from a call's begin to its answer, waiting polls included."})
	m.tellAlso(m.calls.tell)
	m.tellAlso(func(p page) { env.tell(p, &m.accepted) })
	m.tellAlso(m.tellEndpoints)
	m.tellAlso(m.tellStreams)
	return m
}

func newTwoPhaseMetrics(m *Metrics) TwoPhaseMetrics {
	timing := func(name, help string) Timing {
		d := newDistribution(buckets(1000))
		m.tellAlso(func(p page) { d.tell(p, described{name, help}, nil) })
		return Timing{d}
	}
	lag := newRecent(10 * time.Minute)
	m.tellAlso(func(p page) {
		lag.tell(p, described{"save_lag_ms", "Milliseconds from accepted to saved, over the last 5 to 10 minutes."})
	})
	return TwoPhaseMetrics{
		AcceptedWrite:      timing("accepted_write_ms", "Milliseconds until the stream had a message."),
		AcceptedAck:        timing("accepted_ack_ms", "Milliseconds until a message could be acknowledged as accepted."),
		DBQueue:            timing("db_queue_ms", "Milliseconds that a message on the saved path waited for Postgres."),
		SaveLag:            Timing{lag},
		PublishFail:        m.count("publish_fail_total", "Messages that the stream did not take."),
		SaveFail:           m.count("save_fail_total", "Batches of accepted messages that Postgres did not take."),
		DeliverFail:        m.count("deliver_fail_total", "Accepted messages that could not be published to their receiver."),
		DupDB:              m.count("dup_db_total", "Accepted messages whose row was there already."),
		ReorderByAcceptSeq: m.count("reorder_by_accept_seq_total", "Messages that came after one with a greater accept_seq."),
		ReorderByFrom:      m.count("reorder_by_from_total", "Messages that came after one of the same sender with a greater accept_seq."),
	}
}

// count makes a counter that scrapes show.
func (m *Metrics) count(name, help string) *Counter {
	c := new(Counter)
	m.tellAlso(func(p page) { p.tell(counter, name, help, float64(c.n.Load()), nil) })
	return c
}

func newArchiveMetrics(m *Metrics) ArchiveMetrics {
	count := func(name, help string) *CounterBy {
		c := &CounterBy{label: "table", counts: map[string]uint64{}}
		m.tellAlso(func(p page) { c.tell(p, name, help) })
		return c
	}
	return ArchiveMetrics{
		Rows:   count("archived_rows_total", "Rows that sweep moved to an archive table, or deleted, because they were old."),
		Failed: count("archive_failed_rows_total", "Tries to archive a row that the database refused; the row stays in its table."),
	}
}

// tellAlso has scrapes from now on show what tell says too.
func (m *Metrics) tellAlso(tell func(page)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tellers = append(m.tellers, tell)
}

// answered counts a call that is over.
func (m *Metrics) answered(x *exchange) {
	m.calls.add(outcome{x.function, x.route, x.status}, time.Since(x.start))
}

// scrape answers with all that there is to tell.
func (m *Metrics) scrape(w http.ResponseWriter) {
	select {
	case m.scrapes <- struct{}{}:
		defer func() { <-m.scrapes }()
	default:
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	m.mu.Lock()
	tellers := m.tellers
	m.mu.Unlock()
	p := page{}
	for _, tell := range tellers {
		tell(p)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if _, err := w.Write(p.text()); err != nil {
		m.log.Warn("a scrape cannot be answered", "cause", err.Error())
	}
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

// tell looks up what is not counted.
func (e *Env) tell(p page, accepted *glance[bus.AcceptState]) {
	p.tell(gauge, "http_requests_under_way", "Calls that are being worked on, waiting polls included.", float64(e.gate.count()), nil)
	for pool, n := range e.gate.taken() {
		p.tell(gauge, "calls_taken", "Places for calls that are taken, by kind.", float64(n), labels{"kind": pool})
	}
	p.tell(gauge, "memory_budget_used_bytes", "Bytes of SENDONCE_MEMORY_MB that calls hold.", float64(e.budget.inUse()), nil)
	p.tell(counter, "bus_dropped_hints_total", "Wake-ups that could not be sent when they were due.", float64(e.bus.Dropped()), nil)
	if e.db != nil {
		for pool, s := range e.db.Stats() {
			in := labels{"pool": pool}
			for state, n := range map[string]int32{"busy": s.AcquiredConns(), "idle": s.IdleConns(), "connecting": s.ConstructingConns()} {
				p.tell(gauge, "db_connections", "Connections to Postgres.", float64(n), labels{"pool": pool, "state": state})
			}
			p.tell(gauge, "db_connections_max", "Connections to Postgres that there may be.", float64(s.MaxConns()), in)
			p.tell(counter, "db_waits_total", "Times that no connection was idle.", float64(s.EmptyAcquireCount()), in)
			p.tell(counter, "db_wait_seconds_total", "Time spent waiting for a connection.", s.EmptyAcquireWaitTime().Seconds(), in)
		}
	}
	if b, known := accepted.look(); known {
		p.tell(gauge, "stream_len", "Messages in the stream of accepted messages, saved ones that are kept to recognise repeats included.", float64(b.Messages), nil)
		for durable, n := range b.Pending {
			p.tell(gauge, "pending", "Accepted messages that a durable has not taken for good.", float64(n), labels{"durable": durable})
		}
	}
}

func (m *Metrics) tellEndpoints(p page) {
	n, known := m.endpoints.look()
	if !known {
		return
	}
	for state, n := range map[string]int{"failing": n.Failing, "disabled": n.Disabled} {
		p.tell(gauge, "webhook_endpoints", "Registered webhook endpoints that fail or are disabled.", float64(n), labels{"state": state})
	}
}

func (m *Metrics) tellStreams(p page) {
	paused, _ := m.streams.look()
	for _, name := range paused {
		p.tell(gauge, "stream_paused", "1 while a stream takes nothing: it is full, has no leader or does not answer.", 1, labels{"stream": name})
	}
}
