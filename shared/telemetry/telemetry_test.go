package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func newTest() (*Metrics, *sandbox.LogBuffer) {
	log := &sandbox.LogBuffer{}
	return New(slog.New(slog.NewTextHandler(log, nil))), log
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, nil)
	require.Equal(t, http.StatusOK, w.Code)
	return w.Body.String()
}

func requireLines(t *testing.T, got string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		require.Equal(t, 1, strings.Count(got, "sendonce_"+line+"\n"), "%s in %s", line, got)
	}
}

func TestTwoPhaseMetricsAreShown(t *testing.T) {
	t.Parallel()
	m, _ := newTest()
	requireLines(t, scrape(t, m), "dup_db_total 0", "webhook_failed_total 0")
	twoPhase := m.TwoPhase
	for i, timing := range []Timing{twoPhase.AcceptedWrite, twoPhase.AcceptedAck, twoPhase.DBQueue, twoPhase.SaveLag} {
		timing.Observe(time.Duration(i+1) * time.Second)
		timing.Observe(-time.Hour)
	}
	for i, c := range []*metrics.Counter{twoPhase.PublishFail, twoPhase.SaveFail, twoPhase.DeliverFail, twoPhase.DupDB, twoPhase.ReorderByAcceptSeq, twoPhase.ReorderByFrom} {
		c.Add(i + 1)
	}
	requireLines(t, scrape(t, m),
		"accepted_write_seconds_sum 1", "accepted_write_seconds_count 2", "accepted_ack_seconds_sum 2", "db_queue_seconds_sum 3", "save_lag_seconds_sum 4",
		`db_queue_seconds_bucket{le="0.0001"} 1`, `db_queue_seconds_bucket{le="10"} 2`, `save_lag_seconds_bucket{le="3600"} 2`,
		"publish_fail_total 1", "save_fail_total 2", "deliver_fail_total 3", "dup_db_total 4", "reorder_by_accept_seq_total 5", "reorder_by_from_total 6")
}

func TestCallsAreTimedAndCounted(t *testing.T) {
	t.Parallel()
	m, _ := newTest()
	m.Calls.Observe("f", "GET /a", 200, time.Second)
	m.Calls.Observe("f", "GET /a", 0, time.Second)
	m.TriggerDeliveries().Observe("d", "f", 503, time.Second)
	requireLines(t, scrape(t, m),
		`http_requests_total{function="f",route="GET /a",status="200"} 1`, `http_requests_total{function="f",route="GET /a",status="none"} 1`,
		`http_request_seconds_bucket{function="f",route="GET /a",le="10"} 2`,
		`trigger_deliveries_total{durable="d",function="f",status="503"} 1`, `trigger_delivery_seconds_sum{durable="d",function="f"} 1`)
}

func TestConcurrentScrapesAreLimited(t *testing.T) {
	t.Parallel()
	m, _ := newTest()
	for range maxReads {
		m.reads <- struct{}{}
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, nil)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	<-m.reads
	require.NotEmpty(t, scrape(t, m))
}

// brokenWriter is the response to a scraper that has closed the connection.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFailedScrapeIsLogged(t *testing.T) {
	t.Parallel()
	m, log := newTest()
	for range 100 {
		m.ServeHTTP(brokenWriter{httptest.NewRecorder()}, nil)
	}
	require.Equal(t, 1, strings.Count(log.String(), "broken pipe"), "anybody may cause this line, so it is limited")
}

func TestValueIsMissingWhileItCannotBeRead(t *testing.T) {
	t.Parallel()
	m, log := newTest()
	show := func(s *metrics.Scrape, n int) { s.Gauge("length", "Messages.", float64(n)) }
	CollectValue(m, "the stream", func(context.Context) (int, error) { return 9, errors.New("NATS away") }, show)
	require.NotContains(t, scrape(t, m), "length", "a value with an error is not shown")
	require.Contains(t, log.String(), `msg="the stream cannot be read" cause="NATS away"`)
	CollectValue(m, "the stream", func(context.Context) (int, error) { return 7, nil }, show)
	requireLines(t, scrape(t, m), "length 7")
}
