package sandbox

import (
	"os/exec"
	"strings"
	"testing"
)

// Tool returns the path of a program of Prometheus, promtool or prometheus. If the program is not installed, Tool skips
// the test.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is not installed: the package prometheus of Debian contains it")
	}
	return path
}

// RequirePromtoolAccepts checks the names, types and form of metrics. If promtool is not installed, it skips the rest of
// the test.
func RequirePromtoolAccepts(t testing.TB, metrics string) {
	t.Helper()
	check := exec.CommandContext(t.Context(), Tool(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	out, err := check.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("promtool check metrics: %v\n%s", err, out)
	}
}
