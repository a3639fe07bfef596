package metrics

import (
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// example returns a registry with metrics of each kind, and its counter and histogram with labels.
func example() (*Registry, *Counter, *Histogram) {
	r := &Registry{}
	c := r.Counter("calls_total", "Calls.", "route", "status")
	h := r.Histogram("call_seconds", "Time of a call.", []float64{0.1, 1}, "route")
	r.Counter("failures_total", "Failures.")
	r.Histogram("lag_seconds", "Lag.", []float64{1})
	r.Collect(func(s *Scrape) { s.Gauge("waiting_tasks", "Tasks that wait.", 7, "queue", "default") })
	return r, c, h
}

func TestTextFormat(t *testing.T) {
	t.Parallel()
	r, c, h := example()
	c.Inc("/b", "200")
	c.Add(2, "/a", "404")
	h.Observe(0.1, "/a")
	h.Observe(0.5, "/a")
	h.Observe(5, "/a")
	require.Equal(t, `# HELP sendonce_call_seconds Time of a call.
# TYPE sendonce_call_seconds histogram
sendonce_call_seconds_bucket{route="/a",le="0.1"} 1
sendonce_call_seconds_bucket{route="/a",le="1"} 2
sendonce_call_seconds_bucket{route="/a",le="+Inf"} 3
sendonce_call_seconds_sum{route="/a"} 5.6
sendonce_call_seconds_count{route="/a"} 3
# HELP sendonce_calls_total Calls.
# TYPE sendonce_calls_total counter
sendonce_calls_total{route="/a",status="404"} 2
sendonce_calls_total{route="/b",status="200"} 1
# HELP sendonce_failures_total Failures.
# TYPE sendonce_failures_total counter
sendonce_failures_total 0
# HELP sendonce_lag_seconds Lag.
# TYPE sendonce_lag_seconds histogram
sendonce_lag_seconds_bucket{le="1"} 0
sendonce_lag_seconds_bucket{le="+Inf"} 0
sendonce_lag_seconds_sum 0
sendonce_lag_seconds_count 0
# HELP sendonce_waiting_tasks Tasks that wait.
# TYPE sendonce_waiting_tasks gauge
sendonce_waiting_tasks{queue="default"} 7
`, string(r.Text()))
}

func TestLabelValuesAreEscaped(t *testing.T) {
	t.Parallel()
	r, c, _ := example()
	special := "a\\b \"c\"\né{}"
	c.Inc(special, "200")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(r.Text())))
	require.NoError(t, err)
	require.Equal(t, special, families["sendonce_calls_total"].GetMetric()[0].GetLabel()[0].GetValue())
}

func TestConcurrentCallsAreAllCounted(t *testing.T) {
	t.Parallel()
	r, c, h := example()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			c.Inc("/a", "200")
			h.Observe(1, "/a")
			r.Text()
		})
	}
	wg.Wait()
	require.Contains(t, string(r.Text()), `sendonce_calls_total{route="/a",status="200"} 100`)
	require.Contains(t, string(r.Text()), `sendonce_call_seconds_count{route="/a"} 100`)
}

func TestCountingDoesNotAllocate(t *testing.T) {
	_, c, h := example()
	c.Inc("/a", "200")
	h.Observe(1, "/a")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Inc("/a", "200")
		h.Observe(1, "/a")
	}))
}
