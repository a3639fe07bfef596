package deliver_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestFailingEndpointIsLoggedOnceAndCounted(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	status := atomic.Int32{}
	status.Store(http.StatusInternalServerError)
	flapping := cluster.NewReceiver(t, func(_ int, rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(int(status.Load())) })
	id := w.AddEndpoint(flapping.URL).ID
	metric := func(line string) func() bool {
		return func() bool { return strings.Contains(cluster.Metrics(t, w.Admin.URL), line+"\n") }
	}
	// waitTries makes deliveries due until n tries are stored.
	waitTries := func(n int) {
		t.Helper()
		cluster.Eventually(t, func() bool {
			cluster.MakeDue(w)
			return w.Admin.Count(`select coalesce(sum(jsonb_array_length(tries)), 0) from webhook_deliveries`) >= n
		})
	}
	logged := func(change string) int {
		return strings.Count(w.Process(cluster.All).Output(), `"msg":"webhook endpoint `+change+`"`)
	}

	w.FinishTask()
	w.FinishTask()
	waitTries(4)
	require.Equal(t, 1, logged("fails"), "once, not for each try")
	require.Contains(t, w.Process(cluster.All).Output(), id)
	require.Contains(t, w.Process(cluster.All).Output(), "returned 500 Internal Server Error")
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

func TestDeliveryWithoutEventFailsAlone(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	receiver := cluster.NewReceiver(t, nil)
	w.AddEndpoint(receiver.URL)
	w.Admin.Exec(`insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
		select gen_random_uuid(), n::text, id, caller_id, 'x', id, url from webhook_endpoints, generate_series(1, 5) n`)
	w.FinishTask()
	cluster.Eventually(t, func() bool { return receiver.Calls() == 1 })
	w.Admin.WaitCount(5, `select count(*) from webhook_deliveries where tries->0->>'error' = 'there is no event for this delivery'`)
	require.Equal(t, 1, receiver.Calls())
}

func TestDataAfterResponseIsNotLogged(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	w.AddEndpoint("http://" + sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n13800138000")
			_, _ = io.Copy(io.Discard, conn)
		}
	}))
	for range 5 {
		w.FinishTask()
	}
	output := func() string { return w.Process(cluster.All).Output() }
	cluster.Eventually(t, func() bool {
		return w.Admin.Count(`select count(*) from webhook_deliveries where state = 1`) == 5 && strings.Contains(output(), "a receiver sent data after its response")
	})
	require.NotContains(t, output(), "13800138000")
	require.Equal(t, 1, strings.Count(output(), "a receiver sent data after its response"))
}

func TestNumberInHostIsMaskedInLog(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	w.AddEndpoint("http://13800138000.invalid/")
	w.FinishTask()
	output := func() string { return w.Process(cluster.All).Output() }
	cluster.Eventually(t, func() bool { return strings.Contains(output(), "webhook endpoint fails") })
	require.Contains(t, output(), "138****8000.invalid")
	require.NotContains(t, output(), "13800138000")
}
