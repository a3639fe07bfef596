package deliver_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestFailingEndpointIsLoggedOnceAndCounted(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, cluster.AllowLoopback)
	status := atomic.Int32{}
	status.Store(http.StatusInternalServerError)
	shaky := cluster.NewReceiver(t, func(_ int, rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(int(status.Load())) })
	id := w.AddEndpoint(shaky.URL).ID
	metric := func(line string) func() bool {
		return func() bool { return strings.Contains(cluster.Metrics(t, w.Admin.URL), line+"\n") }
	}
	// tried counts the tries that are kept.
	tried := func(n int) {
		t.Helper()
		cluster.Eventually(t, func() bool {
			cluster.MakeDue(w)
			return w.Admin.Count(`select coalesce(sum(jsonb_array_length(tries)), 0) from webhook_deliveries`) >= n
		})
	}
	logged := func(line string) int {
		return strings.Count(w.Process(cluster.All).Output(), `"msg":"webhook endpoint `+line+`"`)
	}

	w.FinishTask()
	w.FinishTask()
	tried(4)
	require.Equal(t, 1, logged("fails"), "once, and not at each try")
	require.Contains(t, w.Process(cluster.All).Output(), id)
	require.Contains(t, w.Process(cluster.All).Output(), "answered 500 Internal Server Error")
	cluster.Eventually(t, metric(`sendonce_webhook_endpoints{state="failing"} 1`))
	require.False(t, metric("sendonce_webhook_failed_total 0")())

	status.Store(http.StatusNoContent)
	cluster.Eventually(t, func() bool {
		cluster.MakeDue(w)
		return logged("recovered") == 1
	})
	cluster.Eventually(t, metric(`sendonce_webhook_endpoints{state="failing"} 0`))

	status.Store(http.StatusGone)
	w.FinishTask()
	cluster.Eventually(t, func() bool { return logged("disabled") == 1 })
	require.Equal(t, 1, logged("fails"))
	cluster.Eventually(t, metric(`sendonce_webhook_endpoints{state="disabled"} 1`))
}
