package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// waitDelivered waits until n deliveries have succeeded, none is pending and no event
// waits to become one: a duplicate would have arrived by then.
func waitDelivered(c *cluster.Cluster, n int) {
	c.T.Helper()
	cluster.Eventually(c.T, func() bool {
		return waitingEvents(c) == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 0`) == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 1`) == n
	}, "all are delivered")
}

// requireEachOnce demands that v got one event of each task, and nothing else.
func requireEachOnce(v *cluster.Receiver, t *testing.T, tasks []string) {
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
	cluster.RequireSame(t, tasks, subjects, "each is delivered once")
}
