package sandbox

import (
	"os/exec"
	"strings"
	"testing"
)

// Tool returns the path of a program of Prometheus, promtool or prometheus, and skips the test where it
// is not installed.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is not installed: the package prometheus of Debian contains it")
	}
	return path
}

// RequirePromtoolAccepts checks the names, types and form of metrics. It skips the rest of the test where
// promtool is not installed.
func RequirePromtoolAccepts(t testing.TB, metrics string) {
	t.Helper()
	check := exec.CommandContext(t.Context(), Tool(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	out, err := check.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("promtool check metrics: %v\n%s", err, out)
	}
}
