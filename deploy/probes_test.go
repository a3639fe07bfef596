package deploy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// port returns the default port of the binary.
func (bin binary) port() string {
	return bin.settings[slices.IndexFunc(bin.settings, func(s setting) bool { return s.name == "APP_PORT" })].def
}

// withoutHealthcheck lists the long-running services of compose with our image that have no health check.
func withoutHealthcheck(compose object) (wrong []string) {
	for name, s := range services(compose) {
		longRunning := text(s, "image") == ourImage && text(s, "restart") == "unless-stopped"
		if longRunning && !slices.Equal(texts(list(s, "healthcheck", "test")), []string{"CMD", "/sendonce", "health"}) {
			wrong = append(wrong, name+": is not checked by `sendonce health`")
		}
	}
	return wrong
}

func TestComposeHealthchecks(t *testing.T) {
	t.Parallel()
	require.Empty(t, withoutHealthcheck(readCompose(t)))
	for _, name := range []string{"trigger", "claim"} {
		compose := readCompose(t)
		delete(services(compose)[name], "healthcheck")
		require.Equal(t, []string{name + ": is not checked by `sendonce health`"}, withoutHealthcheck(compose))
	}
}

// wrongProbes lists what is wrong with the probes of the trigger and with the access to its metrics.
func (c cluster) wrongProbes(bin binary) (wrong []string) {
	o := c.of(deployment).named("trigger")
	container := at(o, "spec", "template", "spec", "containers", 0)
	if got := text(container, "ports", 0, "containerPort"); got != bin.port() {
		wrong = append(wrong, fmt.Sprintf("it listens on %s, not on %q", bin.port(), got))
	}
	// A restart would not bring NATS back: only the readiness probe may depend on it.
	for probe, path := range map[string]string{"livenessProbe": "/healthz", "readinessProbe": "/readyz"} {
		if got := text(container, probe, "httpGet", "path"); got != path {
			wrong = append(wrong, fmt.Sprintf("its %s is %q, not %s", probe, got, path))
		}
		if text(container, probe, "httpGet", "port") != text(container, "ports", 0, "name") {
			wrong = append(wrong, fmt.Sprintf("its %s uses another port", probe))
		}
	}
	functions, trigger := c.scrapers(bin, "function"), c.scrapers(bin, "trigger")
	if len(functions) != 1 || !reflect.DeepEqual(functions, trigger) {
		wrong = append(wrong, fmt.Sprintf("%v scrape functions and %v the trigger", functions, trigger))
	}
	if text(c.of("policy/v1 PodDisruptionBudget").named("trigger"), "spec", "unhealthyPodEvictionPolicy") != "AlwaysAllow" {
		wrong = append(wrong, "while NATS is down, draining a node would wait for it")
	}
	return wrong
}

// scrapers returns the peers that a policy allows to reach our port.
func (c cluster) scrapers(bin binary, policy string) (peers []any) {
	for _, rule := range list(c.of(networkPolicy).named(policy), "spec", "ingress") {
		if slices.ContainsFunc(list(rule, "ports"), func(p any) bool { return text(p, "port") == bin.port() }) {
			peers = append(peers, list(rule, "from")...)
		}
	}
	return peers
}

func TestTriggerProbes(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for _, dir := range overlays(t) {
		require.Empty(t, render(t, dir).wrongProbes(bin), dir)
	}
}

func TestWrongProbesAreFound(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for want, spoil := range map[string]func(container, policy object){
		"it listens on 8000, not on \"8080\"": func(container, _ object) {
			container["ports"] = []any{object{"name": "http", "containerPort": 8080}}
		},
		"its livenessProbe is \"\", not /healthz":         func(container, _ object) { delete(container, "livenessProbe") },
		"its livenessProbe is \"/readyz\", not /healthz":  func(container, _ object) { container["livenessProbe"] = container["readinessProbe"] },
		"its readinessProbe is \"/healthz\", not /readyz": func(container, _ object) { container["readinessProbe"] = container["livenessProbe"] },
		"its readinessProbe uses another port":            func(container, _ object) { container["ports"].([]any)[0].(object)["name"] = "other" },
		"and [] the trigger":                              func(_, policy object) { delete(policy["spec"].(object), "ingress") },
		"scrape functions and [map[namespaceSelector:map[matchLabels:map[kubernetes.io/metadata.name:monitoring]]] map[podSelector:map[]]] the trigger": func(_, policy object) {
			rule := policy["spec"].(object)["ingress"].([]any)[0].(object)
			rule["from"] = append(rule["from"].([]any), object{"podSelector": object{}})
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := render(t, "knative/overlays/production")
			container := at(c.of(deployment).named("trigger"), "spec", "template", "spec", "containers", 0).(object)
			spoil(container, c.of(networkPolicy).named("trigger"))
			require.Contains(t, strings.Join(c.wrongProbes(bin), "\n"), want)
		})
	}
}
