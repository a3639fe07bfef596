package sandbox

import (
	"os/exec"
	"strings"
	"testing"
)

// PrometheusProgram returns the path of a program, promtool or prometheus. If it is not installed, the test is skipped.
func PrometheusProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is not installed: the package prometheus of Debian contains it")
	}
	return path
}

// RequirePromtoolAccepts fails the test if promtool finds a mistake in the names, types or form of metrics. If promtool is
// not installed, the rest of the test is skipped.
func RequirePromtoolAccepts(t testing.TB, metrics string) {
	t.Helper()
	check := exec.CommandContext(t.Context(), PrometheusProgram(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	out, err := check.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("promtool check metrics: %v\n%s", err, out)
	}
}
