package console_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// A compromised function can write rows with invalid values. Pages show such rows, and leave out only the values that they cannot read.
func TestPagesShowForgedRows(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.SubmitTo("promo")
	endpointPath, _ := cluster.RegisterEndpoint(s, `{"url":"https://shop.test/"}`)
	cluster.InsertDelivery(s, strings.TrimPrefix(endpointPath, cluster.EndpointsPath+"/"), id)
	s.Exec(`update webhook_deliveries set tries = '[{"at":"9999-12-31T23:59:59-01:00"},{"at":"2026-01-01T00:00:00Z","error":"READABLE"}]'`)
	s.Exec(`insert into report_logs (task_id, verdict, caller_id) values ($1, 'stale_claim', $2)`, id, task.ServiceCaller)
	for _, filter := range []string{`{"caller_id":-5}`, `{"from":"9999-12-31T23:59:59-01:00"}`, `{"to":"0000-06-01T00:00:00Z"}`} {
		s.Exec(`insert into bulk_changes (id, caller_id, caller_name, request_id, action, filter, reason, matched) values (gen_random_uuid(), 0, 'x', 'x', 'cancel', $1, 'x', 5)`, filter)
	}
	b := logIn(t, s)
	for _, path := range []string{"tasks/" + id, "webhooks/deliveries", "bulk"} {
		got := b.get("/console/" + path)
		require.Equal(t, 200, got.status, "%s\n%s", path, got.text)
		if path != "bulk" {
			got.has(t, "READABLE")
		}
	}
}
