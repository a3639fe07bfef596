package bench

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newServer(t *testing.T) (address string) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestLatencyIncludesWaitForConnection(t *testing.T) {
	t.Parallel()
	const stall = 200 * time.Millisecond
	var once sync.Once
	p := Phase{
		Name: "stalled", Connections: 1, Duration: 2 * stall, MaxRows: NoLimit, CallsPerSecond: 500,
		Call: func(*Client, int) (int, error) {
			once.Do(func() { time.Sleep(stall) })
			return 1, nil
		},
	}
	r, err := p.Run(t.Context(), newServer(t))
	require.NoError(t, err)
	require.Len(t, r.Took, len(p.arrivals()), "every call must be made")
	require.Greater(t, r.Latency(0.9), stall/2, "half of the calls were due during the stall, and waited for the connection")
}

func TestWarmupIsNotCounted(t *testing.T) {
	t.Parallel()
	p := Phase{
		Name: "warm", Connections: 2, Warmup: time.Second, Duration: 50 * time.Millisecond, MaxRows: 3,
		Call: func(*Client, int) (int, error) { return 1, nil },
	}
	r, err := p.Run(t.Context(), newServer(t))
	require.NoError(t, err)
	require.Empty(t, r.Took, "the rows were used up in the warm-up")
	require.Zero(t, r.Rate)
}
