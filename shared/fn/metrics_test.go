package fn

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/task"
)

// scrape reads /metrics without a password, as samples by name and labels; of a
// histogram _count and _sum.
func (h *testServer) scrape() map[string]float64 {
	h.t.Helper()
	request := h.request("GET", "/metrics", "")
	request.Header.Del("Authorization")
	r := send(h.t, request)
	require.Equal(h.t, 200, r.status, r.body)
	require.Equal(h.t, "no-store", r.header.Get("Cache-Control"))
	require.Contains(h.t, r.header.Get("Content-Type"), "text/plain; version=0.0.4")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(r.body))
	require.NoError(h.t, err, r.body)
	samples := map[string]float64{}
	for name, family := range families {
		require.True(h.t, strings.HasPrefix(name, "sendonce_"), name)
		require.NotEmpty(h.t, family.GetHelp(), name)
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += fmt.Sprintf("{%s=%s}", l.GetName(), l.GetValue())
			}
			switch {
			case m.Counter != nil:
				samples[name+labels] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				samples[name+labels] = m.GetGauge().GetValue()
			case m.Histogram != nil:
				samples[name+"_count"+labels] = float64(m.GetHistogram().GetSampleCount())
				samples[name+"_sum"+labels] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return samples
}

func TestCallsAreCountedByPatternAndStatus(t *testing.T) {
	t.Parallel()
	h, other := startServer(t, nil, greeter()), startServer(t, nil, greeter())
	const each = 20
	var all sync.WaitGroup
	for range each {
		all.Go(func() {
			h.call("GET", "/api/v1/greet/13800138000?name=a", "")
			h.call("GET", "/api/v1/greet/13800138000", "")
			h.call("GET", "/api/v1/greet/13800138000?name=a", "", as("admin", "guess"))
			h.call("GET", "/13800138000", "")
			h.call("PUT", "/api/v1/greet/13800138000", "")
			h.call("GET", "/healthz", "")
		})
	}
	all.Go(func() {
		for range each {
			h.scrape()
		}
	})
	all.Wait()
	h.calls(2*each + 3) // refused anonymous calls share a line
	labels := "{function=greeter}{route=GET /api/v1/greet/{id}}"
	want := map[string]float64{
		"sendonce_http_requests_total" + labels + "{status=200}":          each,
		"sendonce_http_requests_total" + labels + "{status=400}":          each,
		"sendonce_http_requests_total" + labels + "{status=401}":          each,
		"sendonce_http_requests_total{function=}{route=none}{status=404}": each,
		"sendonce_http_requests_total{function=}{route=none}{status=405}": each,
		"sendonce_http_request_seconds_count" + labels:                    3 * each,
		"sendonce_http_request_seconds_count{function=}{route=none}":      2 * each,
	}
	var got map[string]float64
	require.Eventually(t, func() bool {
		got = h.scrape()
		counted := "sendonce_http_request_seconds_count"
		return got[counted+"{function=}{route=none}"] == 2*each && got[counted+labels] == 3*each
	}, waitAtMost, tick)
	require.Positive(t, got["sendonce_http_request_seconds_sum"+labels])
	for name := range got {
		require.NotContains(t, name, "138")
		if _, expected := want[name]; !expected && !strings.Contains(name, "_sum") {
			require.NotContains(t, name, "sendonce_http_request_", "nothing else is counted")
			require.NotContains(t, name, "sendonce_http_requests_total")
		}
	}
	for name, n := range want {
		require.InDelta(t, n, got[name], 0, name)
	}
	for name := range other.scrape() {
		require.NotContains(t, name, "greeter", "another process counts for itself")
	}
}

func TestScrapeShowsCallsInProgress(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := startServer(t, nil, failing(func(context.Context) error {
		begun <- struct{}{}
		<-goOn
		return task.Refuse(task.CodeConflict, "done")
	}))
	require.Zero(t, h.scrape()["sendonce_http_requests_under_way"])
	var call sync.WaitGroup
	call.Go(func() { h.call("POST", "/api/v1/fail", "") })
	<-begun
	require.InDelta(t, 1, h.scrape()["sendonce_http_requests_under_way"], 0)
	close(goOn)
	call.Wait()
	require.Eventually(t, func() bool { return h.scrape()["sendonce_http_requests_under_way"] == 0 }, waitAtMost, tick)
}

func TestOpenScrapeAllowsGETAndHEAD(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	require.Equal(t, 200, h.call("HEAD", "/metrics", "").status)
	r := h.call("POST", "/metrics", "")
	require.Equal(t, 405, r.status)
	require.Equal(t, "GET, HEAD", r.header.Get("Allow"))
	require.Equal(t, 404, h.call("GET", "/metrics/", "").status)
	close(h.env.limiter.draining)
	require.NotEmpty(t, h.scrape(), "while the process is ending too")
	require.Len(t, h.calls(1), 1, "only the wrong path is logged")
}

func TestScrapeShowsPostgresConnections(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *Config) {
		c.DatabaseURL = "postgres://somebody:hunter2@127.0.0.1:1/none"
		c.MaxConns = 3
	})
	t.Cleanup(h.env.Close)
	got := h.scrape()
	for _, pool := range []string{"hot", "read"} {
		require.InDelta(t, 3, got["sendonce_db_connections_max{pool="+pool+"}"], 0)
		for _, name := range []string{"waits_total{pool=" + pool + "}", "wait_seconds_total{pool=" + pool + "}",
			"connections{pool=" + pool + "}{state=busy}", "connections{pool=" + pool + "}{state=idle}", "connections{pool=" + pool + "}{state=connecting}"} {
			require.Contains(t, got, "sendonce_db_"+name)
		}
	}
	require.NotContains(t, h.call("GET", "/metrics", "").body, "hunter2")
}

func TestTwoPhaseCountsAndTimesMove(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	m := &h.env.Metrics().TwoPhase
	require.Same(t, m, &h.env.Metrics().TwoPhase)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for _, timing := range []Timing{m.AcceptedWrite, m.AcceptedAck, m.DBQueue} {
				timing.Observe(1500 * time.Microsecond)
			}
			m.SaveLag.Observe(time.Duration(i+1) * time.Second)
			m.PublishFail.Inc()
			m.SaveFail.Inc()
			m.DeliverFail.Inc()
			m.DupDB.Inc()
			m.DupDB.Inc()
			m.ReorderByAcceptSeq.Inc()
			m.ReorderByFrom.Inc()
		})
	}
	all.Wait()
	m.DBQueue.Observe(-time.Hour)
	got := h.scrape()
	for name, want := range map[string]float64{
		"accepted_write_ms_count": 100, "accepted_write_ms_sum": 150,
		"accepted_ack_ms_count": 100, "accepted_ack_ms_sum": 150,
		"db_queue_ms_count": 101, "db_queue_ms_sum": 150,
		"save_lag_ms_count": 100, "save_lag_ms_sum": 5_050_000,
		"publish_fail_total": 100, "save_fail_total": 100, "deliver_fail_total": 100, "dup_db_total": 200,
		"reorder_by_accept_seq_total": 100, "reorder_by_from_total": 100, "bus_dropped_hints_total": 0, "bus_denied_total": 0,
	} {
		require.Contains(t, got, "sendonce_"+name)
		require.InDelta(t, want, got["sendonce_"+name], 1e-6, name)
	}
}

func TestScrapeHasTypeAndHelp(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	h.call("GET", "/api/v1/greet/7?name=a", "")
	h.calls(1)
	h.env.Metrics().TwoPhase.SaveLag.Observe(time.Second)
	require.Eventually(t, func() bool { return strings.Contains(h.call("GET", "/metrics", "").body, "greeter") }, waitAtMost, tick)
	got := h.call("GET", "/metrics", "").body
	for _, line := range []string{
		"# HELP sendonce_http_requests_total Calls that were answered; route is none for paths that nobody has.",
		"# TYPE sendonce_http_requests_total counter",
		"# TYPE sendonce_http_requests_under_way gauge",
		"# TYPE sendonce_http_request_seconds histogram",
		`sendonce_http_request_seconds_bucket{function="greeter",route="GET /api/v1/greet/{id}",le="10"} 1`,
		`sendonce_http_request_seconds_bucket{function="greeter",route="GET /api/v1/greet/{id}",le="+Inf"} 1`,
		"# TYPE sendonce_db_queue_ms histogram",
		`sendonce_db_queue_ms_bucket{le="0.1"} 0`,
		`sendonce_db_queue_ms_bucket{le="10000"} 0`,
		"# TYPE sendonce_save_lag_ms histogram",
		`sendonce_save_lag_ms_bucket{le="3.6e+06"} 1`,
		"sendonce_save_lag_ms_count 1",
	} {
		require.Equal(t, 1, strings.Count(got, line+"\n"), line)
	}
}

func TestConcurrentScrapesAreLimited(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	m := h.env.Metrics()
	for range maxScrapes {
		m.scrapes <- struct{}{}
	}
	require.Equal(t, 503, h.call("GET", "/metrics", "").status)
	<-m.scrapes
	require.NotEmpty(t, h.scrape())
}

// brokenWriter is a scraper that left.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFailedScrapeIsLogged(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	h.env.Metrics().scrape(brokenWriter{httptest.NewRecorder()})
	require.Contains(t, h.log.String(), "broken pipe")
}

func TestBacklogIsShownWhileNATSAnswers(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil)
	require.NotContains(t, h.scrape(), "sendonce_stream_len", "nobody knows it here")
	h.env.Metrics().OnScrape(func(context.Context) (bus.AcceptState, error) {
		return bus.AcceptState{Messages: 9, Pending: map[string]uint64{"save-0": 4, "deliver-0": 0}}, nil
	})
	got := h.scrape()
	require.InDelta(t, 9, got["sendonce_stream_len"], 0)
	require.InDelta(t, 4, got["sendonce_pending{durable=save-0}"], 0)
	require.Contains(t, got, "sendonce_pending{durable=deliver-0}")

	away := startServer(t, nil)
	away.env.Metrics().OnScrape(func(context.Context) (bus.AcceptState, error) {
		return bus.AcceptState{Messages: 9}, errors.New("NATS away")
	})
	got = away.scrape()
	require.NotContains(t, got, "sendonce_stream_len", "rather than an old number")
	require.Contains(t, got, "sendonce_http_requests_under_way", "the rest is shown")
	require.Contains(t, away.log.String(), "NATS away")
}
