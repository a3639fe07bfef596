package fn

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// scrape reads /metrics without a password and returns the values by name and labels.
func (h *testServer) scrape() map[string]float64 {
	h.t.Helper()
	r := h.call("GET", "/metrics", "", anonymous)
	require.Equal(h.t, 200, r.status, r.body)
	require.Equal(h.t, "no-store", r.header.Get("Cache-Control"))
	require.Contains(h.t, r.header.Get("Content-Type"), "text/plain; version=0.0.4")
	samples := map[string]float64{}
	for line := range strings.Lines(r.body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		require.NoError(h.t, err, line)
		samples[line[:end]] = value
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
	h.callLines(2*each + 3) // refused anonymous calls share a line
	const calls, seconds = "sendonce_http_requests_total", "sendonce_http_request_seconds"
	const labels, unknown = `{function="greeter",route="GET /api/v1/greet/{id}"`, `{function="",route="none"`
	want := map[string]float64{
		calls + labels + `,status="200"}`:  each,
		calls + labels + `,status="400"}`:  each,
		calls + labels + `,status="401"}`:  each,
		calls + unknown + `,status="404"}`: each,
		calls + unknown + `,status="405"}`: each,
		seconds + "_count" + labels + "}":  3 * each,
		seconds + "_count" + unknown + "}": 2 * each,
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		counted, got := map[string]float64{}, h.scrape()
		assert.Positive(c, got[seconds+"_sum"+labels+"}"])
		for name, n := range got {
			assert.NotContains(c, name, "138")
			if strings.HasPrefix(name, calls) || strings.HasPrefix(name, seconds+"_count") {
				counted[name] = n
			}
		}
		assert.Equal(c, want, counted, "nothing else is counted")
	}, waitAtMost, tick)
	for name := range other.scrape() {
		require.NotContains(t, name, "greeter", "another process counts for itself")
	}
}

func TestScrapeShowsCallsInProgress(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, nil, holder.function())
	require.Zero(t, h.scrape()["sendonce_http_requests_under_way"])
	h.begin(holder, "POST", "/hold", "submitter")
	require.InDelta(t, 1, h.scrape()["sendonce_http_requests_under_way"], 0)
	holder.release()
	require.Eventually(t, func() bool { return h.scrape()["sendonce_http_requests_under_way"] == 0 }, waitAtMost, tick)
}

func TestScrapeAllowsOnlyGETAndHEAD(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	require.Equal(t, 200, h.call("HEAD", "/metrics", "").status)
	r := h.call("POST", "/metrics", "")
	require.Equal(t, 405, r.status)
	require.Equal(t, "GET, HEAD", r.header.Get("Allow"))
	require.Equal(t, 404, h.call("GET", "/metrics/", "").status)
	close(h.env.limiter.draining)
	require.NotEmpty(t, h.scrape(), "during the drain too")
	h.callLines(1) // only the wrong path is logged
}

func TestScrapeShowsPostgresConnections(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *settings.Config) {
		c.DatabaseURL = "postgres://somebody:hunter2@127.0.0.1:1/none"
		c.MaxConns = 3
	})
	t.Cleanup(h.env.Close)
	got := h.scrape()
	for _, pool := range []string{"hot", "read"} {
		require.InDelta(t, 3, got[`sendonce_db_connections_max{pool="`+pool+`"}`], 0)
		for _, name := range []string{`waits_total{pool="` + pool + `"}`, `wait_seconds_total{pool="` + pool + `"}`,
			`connections{pool="` + pool + `",state="busy"}`, `connections{pool="` + pool + `",state="idle"}`, `connections{pool="` + pool + `",state="connecting"}`} {
			require.Contains(t, got, "sendonce_db_"+name)
		}
	}
	require.NotContains(t, h.call("GET", "/metrics", "").body, "hunter2")
}

func TestMetricsNeedAdminByDefault(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *settings.Config) { c.Metrics = "" }, greeter())
	require.Equal(t, 200, h.call("GET", "/metrics", "").status)
	require.Equal(t, 401, h.call("GET", "/metrics", "", as("admin", "wrong")).status)
	require.Equal(t, 401, h.call("GET", "/metrics", "", anonymous).status)
	require.Equal(t, 403, h.call("GET", "/metrics", "", as("submitter", "token")).status)
	require.Equal(t, 200, h.call("GET", "/healthz", "", anonymous).status)
}

func TestMetricsPortServesOnlyMetrics(t *testing.T) {
	t.Parallel()
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	h := startServer(t, func(c *settings.Config) { c.Host, c.Metrics = "127.0.0.1", fmt.Sprint(port) }, greeter())
	require.NoError(t, h.env.listenForScrapes(t.Context()))
	require.Equal(t, 404, h.call("GET", "/metrics", "").status, "metrics are not on the port of the API")
	ownPort := &testServer{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	r := ownPort.call("GET", "/metrics", "", anonymous)
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "sendonce_http_requests_total")
	require.Equal(t, 404, ownPort.call("PUT", "/api/v1/empty", "").status, "the API is not on the port of metrics")
	require.ErrorContains(t, h.env.listenForScrapes(t.Context()), "SENDONCE_METRICS")

	var closed atomic.Int64
	for range 2 * metricsConnections {
		w := ownPort.dialRaw(t)
		go func() {
			_, _ = w.responses.ReadByte() // nothing is sent before the end
			closed.Add(1)
		}()
	}
	require.Eventually(t, func() bool { return closed.Load() >= metricsConnections }, waitAtMost/2, tick, "few connections may be open")
	require.Equal(t, 200, ownPort.call("GET", "/metrics", "").status, "a further connection gets a response")
	w := ownPort.dialRaw(t)
	w.send("GET /metrics HTTP/1.1\r\n" + strings.Repeat("A:\r\n", 101))
	require.Equal(t, 431, w.status())
}

func TestScrapersThatDoNotReadDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		server := serveWithoutLimits(t, greeter(), func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				running.Add(1)
				defer running.Add(-1)
				h.ServeHTTP(w, r)
			})
		})
		beginScrape := func() net.Conn {
			conn := server.dial()
			t.Cleanup(func() { _ = conn.Close() })
			_, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
			require.NoError(t, err)
			return conn
		}
		scrape := func() {
			res, err := http.ReadResponse(bufio.NewReader(beginScrape()), nil)
			require.NoError(t, err)
			require.Equal(t, 200, res.StatusCode)
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Contains(t, string(text), "sendonce_publish_fail_total")
		}
		for range 200 {
			scrape()
			synctest.Wait()
			beginScrape()
			synctest.Wait()
		}
		require.EqualValues(t, 32, running.Load(), "the oldest scrapes that nobody reads are ended")
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		require.Zero(t, running.Load())
		scrape()
	})
}
