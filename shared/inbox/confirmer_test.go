package inbox

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newConfirmer returns a Confirmer of a fake service, and the number of calls of the service. The service responds with
// the statuses in order, and then always with the last status.
func newConfirmer(t *testing.T, statuses ...int) (*Confirmer, *atomic.Int32) {
	t.Helper()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(calls.Add(1))
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		if r.Method+r.URL.EscapedPath() != "POST/api/v1/messages/m%2F1/received" || string(body) != `{"consumer":"points"}` || user+password != "pointssecret" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(statuses[min(n, len(statuses))-1])
	}))
	t.Cleanup(server.Close)
	return &Confirmer{BaseURL: server.URL + "/", User: "points", Password: "secret", Consumer: "points", HTTP: server.Client()}, &calls
}

func TestConfirmRetriesTemporaryErrors(t *testing.T) {
	t.Parallel()
	c, calls := newConfirmer(t, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusNoContent)
	require.NoError(t, c.Confirm(t.Context(), Message{ID: "m/1"}))
	require.EqualValues(t, 3, calls.Load())
}

func TestConfirmStopsOnPermanentError(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusUnauthorized, http.StatusOK} {
		c, calls := newConfirmer(t, status)
		require.ErrorContains(t, c.Confirm(t.Context(), Message{ID: "m/1"}), http.StatusText(status))
		require.EqualValues(t, 1, calls.Load())
	}
}

func TestConfirmEndsWithContext(t *testing.T) {
	t.Parallel()
	c, calls := newConfirmer(t, http.StatusServiceUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() { errs <- c.Confirm(ctx, Message{ID: "m/1"}) }()
	require.Eventually(t, func() bool { return calls.Load() > 1 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.Error(t, <-errs)
}

func TestConfirmRetriesAfterLostConnection(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	c := &Confirmer{BaseURL: server.URL, Consumer: "points"}
	require.NoError(t, c.Confirm(t.Context(), Message{ID: "m1"}))
	require.EqualValues(t, 2, calls.Load())
}
