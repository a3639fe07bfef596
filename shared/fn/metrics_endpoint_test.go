package fn

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMetricsNeedAdmin(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *Config) { c.Metrics = "" }, greeter())
	require.Equal(t, 200, h.call("GET", "/metrics", "").status)
	require.Equal(t, 401, h.call("GET", "/metrics", "", as("admin", "wrong")).status)
	require.Equal(t, 401, h.call("GET", "/metrics", "", func(r *http.Request) { r.Header.Del("Authorization") }).status)
	require.Equal(t, 403, h.call("GET", "/metrics", "", as("submitter", "token")).status)
	require.Equal(t, 200, h.call("GET", "/healthz", "", func(r *http.Request) { r.Header.Del("Authorization") }).status)
}

func TestMetricsPort(t *testing.T) {
	t.Parallel()
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	h := startServer(t, func(c *Config) { c.Host, c.Metrics = "127.0.0.1", fmt.Sprint(port) }, greeter())
	require.NoError(t, h.env.serveMetrics(t.Context()))
	require.Equal(t, 404, h.call("GET", "/metrics", "").status, "they are not on the port of the calls")
	own := &testServer{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	r := own.call("GET", "/metrics", "", func(r *http.Request) { r.Header.Del("Authorization") })
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "sendonce_http_requests_total")
	require.Equal(t, 404, own.call("PUT", "/api/v1/empty", "").status, "and calls are not on theirs")
	require.ErrorContains(t, h.env.serveMetrics(t.Context()), "SENDONCE_METRICS")

	var closed atomic.Int64
	for range 2 * metricsConnections {
		w := own.dialRaw(t)
		go func() {
			_, _ = w.answers.ReadByte() // nothing is sent before the end
			closed.Add(1)
		}()
	}
	require.Eventually(t, func() bool { return closed.Load() >= metricsConnections }, waitAtMost/2, tick, "few connections may be open")
	require.Equal(t, 200, own.call("GET", "/metrics", "").status, "and a further one is answered")
	w := own.dialRaw(t)
	w.send(headerOf("/metrics", maxHeaderLines+1))
	require.Equal(t, 431, w.status())
}

func TestMetricsSettingIsValidated(t *testing.T) {
	t.Parallel()
	for value, valid := range map[string]bool{"admin": true, "open": true, "9464": true, "1": true, "0": false, "65536": false, "": false, "viewer": false, "-1": false} {
		require.Equal(t, valid, validMetrics(value), value)
	}
}
