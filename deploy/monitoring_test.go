package deploy

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const monitoring = "monitoring/"

func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := sandbox.PrometheusProgram(t, "promtool")
	for _, args := range [][]string{{"check", "rules", monitoring + "alerts.yaml"}, {"test", "rules", monitoring + "alerts_test.yaml"}} {
		out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// alertNames returns the names of the alerts in the order of alerts.yaml.
func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, found := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(readFile(t, monitoring+"alerts.yaml"), -1) {
		names = append(names, found[1])
	}
	require.Greater(t, len(names), 10)
	return names
}

func TestEveryAlertHasTestAndRunbook(t *testing.T) {
	t.Parallel()
	names := alertNames(t)
	for _, page := range []string{"../docs/runbook.md", "../docs/zh-CN/runbook.md"} {
		var sections []string
		for _, found := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(readFile(t, page), -1) {
			sections = append(sections, found[1])
		}
		require.Equal(t, names, sections, page)
	}
	rules, tests := readFile(t, monitoring+"alerts.yaml"), readFile(t, monitoring+"alerts_test.yaml")
	for _, name := range names {
		require.Contains(t, rules, "runbook.md#"+strings.ToLower(name)+"\n")
		require.Contains(t, tests, "alertname: "+name+"\n")
	}
}

func TestDashboardPanelsDoNotOverlap(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(readFile(t, monitoring+"dashboard.json")), &dashboard))
	titles, ids := map[[2]int]string{}, map[int]bool{} // titles by cell of the grid
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "%s: another panel has this id", p.Title)
		ids[p.ID] = true
		require.Equal(t, p.Type != "row", len(p.Targets) > 0, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, titles[cell], "%s covers another panel", p.Title)
				titles[cell] = p.Title
			}
		}
	}
}

// ruleHead is the head of the PrometheusRule; the rules of alerts.yaml follow.
const ruleHead = `# deploy/monitoring/alerts.yaml for the Prometheus Operator; make golden writes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: sendonce, namespace: sendonce, labels: {app.kubernetes.io/part-of: sendonce}}
spec:
`

func TestKnativeRulesAreTheAlertRules(t *testing.T) {
	t.Parallel()
	const file = "knative/monitoring/rules.yaml"
	want := ruleHead
	for line := range strings.Lines(readFile(t, monitoring+"alerts.yaml")) {
		if !strings.HasPrefix(line, "#") {
			want += "  " + line
		}
	}
	requireGolden(t, file, want, "go test ./deploy -run TestKnativeRules -update")
}

func TestPodMonitorsSelectPods(t *testing.T) {
	t.Parallel()
	pods := map[string]bool{"serving.knative.dev/service: exporter": true}
	for _, o := range render(t, "knative/overlays/production").sendonce() {
		for name, value := range at(o, "spec", "template", "metadata", "labels").(object) {
			pods[name+": "+value.(string)] = true
		}
	}
	monitors := render(t, "knative/monitoring").of("monitoring.coreos.com/v1 PodMonitor")
	require.Len(t, monitors, 3)
	for _, m := range monitors {
		for name, value := range at(m, "spec", "selector", "matchLabels").(object) {
			require.True(t, pods[name+": "+value.(string)], "%s selects no pod", text(m, "metadata", "name"))
		}
	}
}

func TestPrometheusScrapesEveryService(t *testing.T) {
	t.Parallel()
	names := strings.SplitN(readFile(t, monitoring+"prometheus.yaml"), "names: [", 2)
	require.Len(t, names, 2)
	listed, _, _ := strings.Cut(names[1], "]")
	bin := describeBinary(t)
	require.ElementsMatch(t, append(bin.functions, "trigger"), strings.Split(listed, ", "))
}
