package fn

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"
)

// deadlines records the read deadlines of a request.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.set = append(d.set, at); return nil }

func TestEventWithoutBodyLeavesNoReadDeadline(t *testing.T) {
	t.Parallel()
	env := startServer(t, nil).env
	h, err := Handler(env, Event("tick", func(*Env, struct{}) EventHandler {
		return func(context.Context, *Call, cloudevents.Event) error { return nil }
	}))
	require.NoError(t, err)
	r := httptest.NewRequest("POST", "/events/tick", http.NoBody)
	r.SetBasicAuth("admin", "secret")
	for name, value := range map[string]string{"Specversion": "1.0", "Id": "1", "Source": "/s", "Type": "t"} {
		r.Header.Set("Ce-"+name, value)
	}
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, r)
	require.Equal(t, 204, w.Code, w.Body)
	for _, at := range w.set {
		require.True(t, at.IsZero(), "if the process is suspended for a second, a deadline would cancel the context of the connection")
	}
}

func TestConnectionOfCancelledCallsIsClosed(t *testing.T) {
	t.Parallel()
	env := startServer(t, nil).env
	h, err := Handler(env, greeter())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/healthz", nil))
	require.Equal(t, "close", w.Header().Get("Connection"))
}
