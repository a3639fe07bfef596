package fn

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// A waiting call keeps only the header Authorization.
func TestWaitingCallsDropHeaders(t *testing.T) {
	t.Parallel()
	kept := make(chan http.Header, 3)
	waiting := HTTP("waiting", func(*Env, struct{}) Routes {
		return Routes{
			"POST /poll": Raw(Submitter, func(_ context.Context, c *Call) (any, error) {
				err := c.StartWaiting()
				kept <- c.RequestHeader()
				return nil, err
			}),
			"GET /stream": WithSocket(Stream(Submitter, func(_ context.Context, c *Call, _ struct{}, w *EventWriter) error {
				err := w.Mark("1")
				kept <- c.RequestHeader()
				return err
			}), nil, func(_ context.Context, c *Call, _ struct{}, s *Socket) error {
				err := s.Open(1000, echo)
				kept <- c.RequestHeader()
				return err
			}),
		}
	})
	h := serveFunctions(t, waiting, greeter())
	large := header("X-Large", strings.Repeat("a", 10_000))
	require.Equal(t, 200, h.call("POST", "/poll", "", large).status)
	require.Equal(t, 200, h.call("GET", "/stream", "", large).status)
	r := h.request("GET", "/stream", "", large)
	conn, _, err := websocket.Dial(t.Context(), r.URL.String(), &websocket.DialOptions{HTTPHeader: r.Header})
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	for range 3 {
		require.Equal(t, http.Header{"Authorization": {r.Header.Get("Authorization")}}, <-kept)
	}
	require.Equal(t, 200, h.greet(large).status, "a call that does not wait is served with the large header")
}
