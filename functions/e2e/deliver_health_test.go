package e2e

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAFailingEndpointIsLoggedOnceAndMeasured(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	status := atomic.Int32{}
	status.Store(http.StatusInternalServerError)
	shaky := newReceiver(t, func(_ int, rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(int(status.Load())) })
	id := w.endpoint(shaky.URL).ID
	metric := func(line string) func() bool {
		return func() bool { return strings.Contains(metricsOf(t, w.looker.url), line+"\n") }
	}
	// tried counts the tries that are kept.
	tried := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			makeDue(w)
			return w.looker.count(`select coalesce(sum(jsonb_array_length(tries)), 0) from webhook_deliveries`) >= n
		}, waitLimit, 20*time.Millisecond)
	}
	logged := func(line string) int { return strings.Count(w.process.Output(), `"msg":"webhook endpoint `+line+`"`) }

	w.finishOne()
	w.finishOne()
	tried(4)
	require.Equal(t, 1, logged("fails"), "once, and not at each try")
	require.Contains(t, w.process.Output(), id)
	require.Contains(t, w.process.Output(), "answered 500 Internal Server Error")
	require.Eventually(t, metric(`sendonce_webhook_endpoints{state="failing"} 1`), waitLimit, 50*time.Millisecond)
	require.False(t, metric("sendonce_webhook_failed_total 0")())

	status.Store(http.StatusNoContent)
	require.Eventually(t, func() bool {
		makeDue(w)
		return logged("recovered") == 1
	}, waitLimit, 20*time.Millisecond)
	require.Eventually(t, metric(`sendonce_webhook_endpoints{state="failing"} 0`), waitLimit, 50*time.Millisecond)

	status.Store(http.StatusGone)
	w.finishOne()
	require.Eventually(t, func() bool { return logged("disabled") == 1 }, waitLimit, 20*time.Millisecond)
	require.Equal(t, 1, logged("fails"))
	require.Eventually(t, metric(`sendonce_webhook_endpoints{state="disabled"} 1`), waitLimit, 50*time.Millisecond)
}
