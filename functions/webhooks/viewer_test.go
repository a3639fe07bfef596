package webhooks_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
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
	endpoint := strings.TrimPrefix(at, cluster.EndpointsPath+"/")
	path := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, endpoint, endpoint)
	s.Exec(`update webhook_deliveries set tries = '[{"at":"2026-01-01T00:00:00Z","status":404,"error":"returned 404 Not Found","response":"Cannot POST /SECRETMARK"}]'`)
	require.Contains(t, s.Get(path).Text, "SECRETMARK")
	got := s.NewCaller("viewer", "viewer").Get(path)
	require.Contains(t, got.Text, "returned 404 Not Found", got.Text)
	require.NotContains(t, got.Text, "SECRETMARK")
}

// A webhook.disabled event contains the URL of the endpoint that was disabled.
func TestViewersSeeOnlyTheHostOfDisabledEndpoints(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/"}`)
	disabled := strings.TrimPrefix(at, cluster.EndpointsPath+"/")
	path := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, disabled, disabled)
	const data = `{"endpoint_id":"%s","url":"%s","reason":"gone"}`
	s.Exec(`update webhook_deliveries set event_type = 'sendonce.webhook.disabled.v1'`)
	s.Exec(`update webhook_events set payload = $1`, `{"specversion":"1.0","type":"sendonce.webhook.disabled.v1","data":`+
		fmt.Sprintf(data, disabled, `https://hooks.example.com/\"SECRETMARK?key=SECRETMARK\u0026a=1`)+`}`)
	require.Contains(t, s.Get(path).Text, "SECRETMARK")
	got := s.NewCaller("viewer", "viewer").Get(path).RequireOK()
	require.NotContains(t, got.Text, "SECRETMARK")
	require.Contains(t, got.Text, fmt.Sprintf(data, disabled, "https://hooks.example.com/****"), "the rest of the event is kept")
}
