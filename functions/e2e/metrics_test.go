package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestPromtoolAcceptsMetricsOfAllFunctions(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	sandbox.PrometheusProgram(t, "promtool")
	c := cluster.OpenTwoPhase(t, "SENDONCE_METRICS=open")
	c.Save("user:ann")
	c.Admin.Tick("relay")
	sandbox.RequirePromtoolAccepts(t, cluster.Metrics(t, c.Admin.URL))
}

// The NATS server of cluster.New fails the test if it denies a user something.
func TestEachFunctionMayReadItsMetricsFromNATS(t *testing.T) {
	t.Parallel()
	c := cluster.New(t, "TWO_PHASE_ENABLED=true")
	c.EnsureStreams()
	for _, f := range functions.Catalogue() {
		require.NotEmpty(t, cluster.Metrics(t, c.Start(f.Name)), f.Name)
	}
}
