// Package telemetry has the metrics that a process serves at GET /metrics: what it has counted since its start, and
// values that it reads for a scrape.
//
// The route /metrics may be open to everyone, so no label holds text that callers choose: a
// route is shown by its pattern, never by its path.
package telemetry

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/metrics"
)

const readTimeout = time.Second // of Cached; well below the 10 s that Prometheus waits for a scrape by default

// In seconds. durationBuckets go from 0.1 ms, reading one message of a stream, to 10 s, the deadline of most routes.
var (
	durationBuckets = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
	lagBuckets      = append(durationBuckets[4:len(durationBuckets):len(durationBuckets)], 30, 60, 300, 900, 3600)
)

// Metrics has the metrics of one process. It is safe for concurrent use.
type Metrics struct {
	TwoPhase      TwoPhase
	Archive       Archive
	WebhookFailed *metrics.Counter // calls of webhooks and callbacks that got no 2xx response
	Calls         Timer            // of routes, by function and route
	*Endpoint

	mu         sync.Mutex
	collectors map[string]func(*metrics.Scrape) // by the parameter what of CollectValue
}

// TwoPhase shows how much sooner messages are acknowledged if that happens before they are saved, and whether
// Postgres keeps up.
type TwoPhase struct {
	AcceptedWrite Timing // from publishing a message to the stream until NATS has confirmed that it is stored
	AcceptedAck   Timing // AcceptedWrite, plus encoding the message and checking the durability of the stream
	DBQueue       Timing // until Postgres has saved or refused a message that was not accepted first, waiting for a batch included
	SaveLag       Timing // from accepted to saved

	// PublishFail counts messages that NATS did not confirm, or that were not published because the durability of the
	// stream was too low.
	PublishFail *metrics.Counter
	SaveFail    *metrics.Counter // batches that Postgres did not store; they are retried
	// DeliverFail counts messages that deliver could not publish before they were saved, although NATS was available.
	// The function relay publishes them afterwards.
	DeliverFail *metrics.Counter
	DupDB       *metrics.Counter // accepted messages whose row existed already

	// These count messages that this process saved after one with a greater accept_seq.
	ReorderByAcceptSeq *metrics.Counter // of the same shard
	ReorderByFrom      *metrics.Counter // of the same sender
}

// Archive counts, by table, the rows that left the main tables, and failed tries.
type Archive struct {
	Rows   *metrics.Counter // moved to an archive table, or deleted
	Failed *metrics.Counter // failed tries to archive a row
}

// Timing counts durations.
type Timing struct{ seconds *metrics.Histogram }

// Observe counts one duration. A negative one, which the clocks of two machines can cause,
// counts as 0.
func (t Timing) Observe(d time.Duration) {
	t.seconds.Observe(max(d, 0).Seconds())
}

// Timer counts calls by two labels and their status, and times them by the two labels.
type Timer struct {
	count   *metrics.Counter
	seconds *metrics.Histogram
}

// Observe counts one call. Status 0 is a call without a response.
func (t Timer) Observe(label1, label2 string, status int, took time.Duration) {
	statusLabel := "none"
	if status != 0 {
		statusLabel = strconv.Itoa(status)
	}
	t.count.Inc(label1, label2, statusLabel)
	t.seconds.Observe(took.Seconds(), label1, label2)
}

// New returns metrics that count from 0. Failures to read or write them go to log.
func New(log *slog.Logger) *Metrics {
	r := &metrics.Registry{}
	timing := func(name, help string, bounds []float64) Timing { return Timing{r.Histogram(name, help, bounds)} }
	m := &Metrics{
		TwoPhase: TwoPhase{
			AcceptedWrite:      timing("accepted_write_seconds", "Time until the stream had a message.", durationBuckets),
			AcceptedAck:        timing("accepted_ack_seconds", "Time until a message could be acknowledged as accepted.", durationBuckets),
			DBQueue:            timing("db_queue_seconds", "Time until Postgres had saved or refused a message that was not accepted first.", durationBuckets),
			SaveLag:            timing("save_lag_seconds", "Time from accepted to saved.", lagBuckets),
			PublishFail:        r.Counter("publish_fail_total", "Messages that were not accepted: NATS did not confirm them, or the durability of the stream was too low."),
			SaveFail:           r.Counter("save_fail_total", "Batches of accepted messages that Postgres did not store."),
			DeliverFail:        r.Counter("deliver_fail_total", "Accepted messages that could not be published before they were saved, although NATS was available."),
			DupDB:              r.Counter("dup_db_total", "Accepted messages whose row was there already."),
			ReorderByAcceptSeq: r.Counter("reorder_by_accept_seq_total", "Messages that were saved after one of the same shard with a greater accept_seq."),
			ReorderByFrom:      r.Counter("reorder_by_from_total", "Messages that were saved after one of the same sender with a greater accept_seq."),
		},
		WebhookFailed: r.Counter("webhook_failed_total", "Calls of webhooks and callbacks that got no 2xx response."),
		Archive: Archive{
			Rows:   r.Counter("archived_rows_total", "Rows that sweep moved to an archive table, or deleted, because they were old.", "table"),
			Failed: r.Counter("archive_failed_rows_total", "Tries to archive a row that the database refused; the row stays in its table.", "table"),
		},
		Calls: Timer{
			r.Counter("http_requests_total", "Calls; route is none for unknown paths, status is none if there was no response.", "function", "route", "status"),
			r.Histogram("http_request_seconds", "Time from the start of a call to its response, waiting polls included.", durationBuckets, "function", "route"),
		},
		Endpoint:   NewEndpoint(r, log),
		collectors: map[string]func(*metrics.Scrape){},
	}
	r.Collect(showRuntime)
	r.Collect(m.collect)
	return m
}

// TriggerDeliveries adds the metrics of the trigger's POSTs, by durable and function.
func (m *Metrics) TriggerDeliveries() Timer {
	return Timer{
		m.Registry.Counter("trigger_deliveries_total", "POSTs to a function that have ended; status is none if there was no response.", "durable", "function", "status"),
		m.Registry.Histogram("trigger_delivery_seconds", "Time from the start of a POST until its response, or until the trigger gave up.", durationBuckets, "durable", "function"),
	}
}

// CollectValue adds a value to each scrape. A scrape calls read, unless the last result is less than 1 s old; the context
// of read ends after 1 s. While read fails, the value is missing, and "<what> cannot be read" is logged. A later call
// with the same what replaces an earlier one.
func CollectValue[T any](m *Metrics, what string, read func(context.Context) (T, error), show func(*metrics.Scrape, T)) {
	value := Cached(m, what, read)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collectors[what] = func(s *metrics.Scrape) {
		if v, err := value.Get(); err == nil {
			show(s, v)
		}
	}
}

// Cached returns a value that is read when it is needed, at most once a second. A failure is logged as
// "<what> cannot be read".
func Cached[T any](m *Metrics, what string, read func(context.Context) (T, error)) *cache.Value[T] {
	return &cache.Value[T]{Timeout: readTimeout, Read: func(ctx context.Context) (T, error) {
		value, err := read(ctx)
		if err != nil {
			m.log.Warn(what+" cannot be read", "cause", err.Error())
		}
		return value, err
	}}
}

func (m *Metrics) collect(s *metrics.Scrape) {
	m.mu.Lock()
	collectors := slices.Collect(maps.Values(m.collectors))
	m.mu.Unlock()
	for _, collect := range collectors {
		collect(s)
	}
}
