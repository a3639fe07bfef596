package e2e

import (
	"testing"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestPromtoolAcceptsMetricsOfAllFunctions(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	sandbox.Tool(t, "promtool")
	c := cluster.OpenTwoPhase(t, "SENDONCE_METRICS=open")
	c.Save("user:ann")
	c.Admin.Tick("relay")
	sandbox.RequirePromtoolAccepts(t, cluster.Metrics(t, c.Admin.URL))
}
