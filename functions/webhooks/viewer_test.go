package webhooks_test

import (
	"fmt"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// The URL of an endpoint or robot may be a secret.
func TestViewersSeeOnlyTheHostOfURLs(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	created := s.Post(cluster.EndpointsPath, `{"url":"https://hooks.example.com/services/SECRETMARK?key=SECRETMARK","events":["alert.raised"],"format":"slack"}`).RequireOK()
	id := created.Data("id").(string)
	viewer := s.NewCaller("viewer", "viewer")
	for _, path := range []string{cluster.EndpointsPath, cluster.EndpointsPath + "/" + id, cluster.AdminPath + "actions"} {
		require.Contains(t, s.Get(path).Text, "SECRETMARK", path)
		got := viewer.Get(path).RequireOK()
		require.NotContains(t, got.Text, "SECRETMARK", path)
		require.Contains(t, got.Text, `"https://hooks.example.com/****"`, path)
	}
}

// A receiver may repeat its path and query in an error page.
func TestViewersSeeNoResponseOfAReceiver(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/"}`)
	delivery := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, path.Base(at), task.NewID())
	s.Exec(`update webhook_deliveries set tries = '[{"at":"2026-01-01T00:00:00Z","status":404,"error":"returned 404 Not Found","response":"Cannot POST /SECRETMARK"}]'`)
	require.Contains(t, s.Get(delivery).Text, "SECRETMARK")
	got := s.NewCaller("viewer", "viewer").Get(delivery)
	require.Contains(t, got.Text, "returned 404 Not Found", got.Text)
	require.NotContains(t, got.Text, "SECRETMARK")
}

// A webhook.disabled event contains the URL of the endpoint that was disabled.
func TestViewersSeeOnlyTheHostOfDisabledEndpoints(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/"}`)
	disabled := path.Base(at)
	delivery := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, disabled, disabled)
	const data = `{"endpoint_id":"%s","url":"%s","reason":"gone"}`
	s.Exec(`update webhook_deliveries set event_type = 'sendonce.webhook.disabled.v1'`)
	s.Exec(`update webhook_events set payload = $1`, `{"specversion":"1.0","type":"sendonce.webhook.disabled.v1","data":`+
		fmt.Sprintf(data, disabled, `https://hooks.example.com/\"SECRETMARK?key=SECRETMARK\u0026a=1`)+`}`)
	require.Contains(t, s.Get(delivery).Text, "SECRETMARK")
	got := s.NewCaller("viewer", "viewer").Get(delivery).RequireOK()
	require.NotContains(t, got.Text, "SECRETMARK")
	require.Contains(t, got.Text, fmt.Sprintf(data, disabled, "https://hooks.example.com/****"), "the rest of the event is kept")
}
