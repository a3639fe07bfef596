package cluster

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// Receiver is a server that receives webhooks. Mu guards the other fields.
type Receiver struct {
	*httptest.Server
	Mu      sync.Mutex
	Respond func(n int, w http.ResponseWriter, r *http.Request) // n counts the calls from 1. nil: each response is 204
	Headers []http.Header
	Bodies  [][]byte
}

// NewReceiver starts a Receiver, which ends with the test.
func NewReceiver(t *testing.T, respond func(n int, w http.ResponseWriter, r *http.Request)) *Receiver {
	t.Helper()
	v := &Receiver{Respond: respond}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		v.Mu.Lock()
		v.Headers, v.Bodies = append(v.Headers, r.Header.Clone()), append(v.Bodies, body)
		n, respond := len(v.Bodies), v.Respond
		v.Mu.Unlock()
		if respond == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		respond(n, w, r)
	}))
	t.Cleanup(v.Close)
	return v
}

// RespondWith returns a Respond that returns the next status for each call, and repeats the last status.
func RespondWith(status ...int) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status[min(n, len(status))-1]) }
}

// Calls counts the calls so far.
func (v *Receiver) Calls() int {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	return len(v.Bodies)
}

// Event waits for the n-th call, verifies its signature and returns its event.
func (v *Receiver) Event(t *testing.T, n int, secret string) api.WebhookEvent {
	t.Helper()
	Eventually(t, func() bool { return v.Calls() >= n }, "a webhook call")
	v.Mu.Lock()
	defer v.Mu.Unlock()
	require.NoError(t, api.VerifyWebhook(v.Headers[n-1], v.Bodies[n-1], time.Now(), secret))
	var e api.WebhookEvent
	require.NoError(t, json.Unmarshal(v.Bodies[n-1], &e), string(v.Bodies[n-1]))
	require.Equal(t, e.ID, v.Headers[n-1].Get("webhook-id"))
	return e
}

func ListenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	return l
}

// RequireEachOnce requires that v has received one event of the success of each task, and nothing else.
func (v *Receiver) RequireEachOnce(t *testing.T, tasks []string) {
	t.Helper()
	v.Mu.Lock()
	defer v.Mu.Unlock()
	ids, subjects := map[string]bool{}, make([]string, len(v.Bodies))
	for i, body := range v.Bodies {
		var e api.WebhookEvent
		require.NoError(t, json.Unmarshal(body, &e))
		require.Equal(t, "sendonce.task.succeeded.v1", e.Type)
		ids[v.Headers[i].Get("webhook-id")], subjects[i] = true, e.Subject
	}
	require.Len(t, ids, len(tasks))
	require.ElementsMatch(t, tasks, subjects, "each event is delivered once")
}

// AlertEvent is Event for the event of an alert. It also returns the data of the event.
func (v *Receiver) AlertEvent(t *testing.T, n int, secret string) (api.WebhookEvent, api.AlertEventData) {
	t.Helper()
	e := v.Event(t, n, secret)
	var data api.AlertEventData
	require.NoError(t, json.Unmarshal(e.Data, &data))
	require.Equal(t, e.Subject, data.AlertID)
	return e, data
}
