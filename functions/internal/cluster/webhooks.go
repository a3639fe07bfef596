package cluster

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// RegisterEndpoint registers a webhook endpoint, and returns its path and its new secret ("" for a robot).
func RegisterEndpoint(s *Client, body string) (path, secret string) {
	s.T.Helper()
	registered := s.Post(EndpointsPath, body).RequireOK()
	secret, _ = registered.Data("secret").(string)
	return fmt.Sprintf("%s/%v", EndpointsPath, registered.Data("id")), secret
}

// InsertDelivery inserts a pending delivery of a task's event to an endpoint, and returns its id.
func InsertDelivery(s *Client, endpoint, taskID any) string {
	s.T.Helper()
	id := task.NewID()
	s.Exec(`with event as (insert into webhook_events (id, payload) values ($3::text || '-7', format(
			'{"specversion":"1.0","id":"%1$s-7","source":"/sendonce","type":"sendonce.task.succeeded.v1","subject":"%1$s",'
			'"time":"2023-12-01T10:01:00Z","datacontenttype":"application/json","sequence":"00000000000000000007",'
			'"data":{"task_id":"%1$s","state":"succeeded","status":2}}', $3::text)) on conflict do nothing)
		insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
		select $1, $3::text || '-7', e.id, e.caller_id, 'sendonce.task.succeeded.v1', $3::uuid, coalesce(e.url, 'https://shop.test/callback')
		from webhook_endpoints e where e.id = $2::uuid`, id, endpoint, taskID)
	return id.String()
}

// InsertAttempts changes a delivery as if a first try had failed and a second had succeeded.
func InsertAttempts(s *Client, delivery string) {
	s.T.Helper()
	s.Exec(`update webhook_deliveries set state = 1, attempts = 1, claims = 2, tried = 2, next_at = null, finished_at = now(), tries = jsonb_build_array(
		jsonb_build_object('at', now() - interval '5 s', 'duration_ms', 10000, 'error', 'timed out after 10s'),
		jsonb_build_object('at', now(), 'status', 204, 'duration_ms', 12, 'response', 'ok')) where id = $1`, delivery)
}

// WaitDeliveries waits until n deliveries are in a state, and returns them.
func WaitDeliveries(c *Cluster, state string, n int) []api.DeliveryResponse {
	c.T.Helper()
	var page api.Page[api.DeliveryResponse]
	Eventually(c.T, func() bool {
		var err error
		page, err = c.API("webhooks").Deliveries(c.T.Context(), api.DeliveriesRequest{State: state})
		return err == nil && len(page.Items) == n
	}, state)
	return page.Items
}

// MakeDue makes the next try of all pending deliveries, and the next send of all messages that have sends left, due now.
func MakeDue(c *Cluster) {
	c.T.Helper()
	c.Admin.Exec(`update webhook_deliveries set next_at = now() where state = 0`)
	c.Admin.Exec(`update message_live set next_at = now() where remaining_sends > 0`)
}

// Metrics reads /metrics of a process. It sends no password.
func Metrics(t *testing.T, base string) string {
	t.Helper()
	res, err := http.Get(base + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode, string(text))
	return string(text)
}

// WaitAllDelivered waits until n deliveries have succeeded (state 1), no delivery is pending (state 0) and the outbox
// is empty. If there were a duplicate, it would have arrived by then.
func WaitAllDelivered(c *Cluster, n int) {
	c.T.Helper()
	Eventually(c.T, func() bool {
		return c.WaitingEvents() == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 0`) == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 1`) == n
	}, "all are delivered")
}
