package e2e

import (
	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// waitDelivered waits until n deliveries have succeeded, none is pending and no event
// waits to become one: a duplicate would have arrived by then.
func waitDelivered(c *cluster.Cluster, n int) {
	c.T.Helper()
	cluster.Eventually(c.T, func() bool {
		return c.WaitingEvents() == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 0`) == 0 &&
			c.Admin.Count(`select count(*) from webhook_deliveries where state = 1`) == n
	}, "all are delivered")
}
