package deploy

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowedPeers returns the peers that a policy allows to connect to the port of Sendonce.
func (c cluster) allowedPeers(bin binary, policy string) (peers []any) {
	for _, rule := range list(c.of(networkPolicy).named(policy), "spec", "ingress") {
		if slices.ContainsFunc(list(rule, "ports"), func(p any) bool { return text(p, "port") == bin.defaultOf("APP_PORT") }) {
			peers = append(peers, list(rule, "from")...)
		}
	}
	return peers
}

func TestTriggerProbes(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for _, dir := range overlays(t) {
		c := render(t, dir)
		container := at(c.of(deployment).named("trigger"), "spec", "template", "spec", "containers", 0)
		require.Equal(t, bin.defaultOf("APP_PORT"), text(container, "ports", 0, "containerPort"), dir)
		// A restart would not bring NATS back: only the readiness probe may depend on NATS.
		for probe, path := range map[string]string{"livenessProbe": "/healthz", "readinessProbe": "/readyz"} {
			require.Equal(t, path, text(container, probe, "httpGet", "path"), dir)
			require.Equal(t, text(container, "ports", 0, "name"), text(container, probe, "httpGet", "port"), dir)
		}
		require.Len(t, c.allowedPeers(bin, "function"), 1, dir)
		require.Equal(t, c.allowedPeers(bin, "function"), c.allowedPeers(bin, "trigger"), dir)
		require.Equal(t, "AlwaysAllow", text(c.of("policy/v1 PodDisruptionBudget").named("trigger"), "spec", "unhealthyPodEvictionPolicy"),
			"otherwise, draining a node would wait while NATS is down")
	}
}
