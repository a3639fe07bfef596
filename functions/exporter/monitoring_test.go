package exporter_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const monitoring = "../../deploy/monitoring/"

func readMonitoring(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(monitoring + file)
	require.NoError(t, err)
	return string(text)
}

func TestDashboardRulesAndRunbookUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	c := openWithSampleData(t)
	exist := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(scrape(t, c.Admin.URL)+cluster.Metrics(t, c.Admin.URL), -1) {
		exist[found[1]] = true
	}
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, file := range []string{"dashboard.json", "alerts.yaml", "../../docs/runbook.md", "../../docs/zh-CN/runbook.md"} {
		used := regexp.MustCompile(`\bsendonce_[a-z0-9_]+`).FindAllString(readMonitoring(t, file), -1)
		require.NotEmpty(t, used)
		for _, name := range used {
			if strings.HasPrefix(name, "sendonce_trigger_") {
				continue // the metrics of the trigger, another process
			}
			require.True(t, exist[name] || exist[suffix.ReplaceAllString(name, "")], "%s: there is no metric %s", file, name)
		}
	}
}

// The alert rules of deploy/monitoring run here without their waiting times (for: 0s).
func TestPrometheusFiresAlertsOfRunningSystem(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	prometheus := sandbox.PrometheusProgram(t, "prometheus")
	c := openWithSampleData(t)
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("alerts.yaml", regexp.MustCompile(`for: \w+`).ReplaceAllString(readMonitoring(t, "alerts.yaml"), "for: 0s"))
	target := strings.TrimPrefix(c.Admin.URL, "http://")
	config := readMonitoring(t, "prometheus.yaml")
	config = regexp.MustCompile(`_interval: \w+`).ReplaceAllString(config, "_interval: 1s")
	config = regexp.MustCompile(`(?s)dns_sd_configs:.*`).ReplaceAllString(config, `static_configs: [{targets: ["exporter:8000"]}]`)
	config = strings.ReplaceAll(config, "exporter:8000", target)
	write("prometheus.yaml", config)
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	sandbox.StartProcess(t, prometheus, []string{"PATH=" + os.Getenv("PATH")}, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")

	cluster.Eventually(t, func() bool {
		firing := firingAlerts(address)
		return firing["SendonceMessagesStuck"] && !firing["SendonceExporterDown"]
	}, "SendonceMessagesStuck fires, and SendonceExporterDown does not")
	c.Admin.Exec(`update message_live set remaining_sends = 1, next_at = now() + interval '1 hour'`)
	cluster.Eventually(t, func() bool { return !firingAlerts(address)["SendonceMessagesStuck"] }, "the alert stops firing")
}

// firingAlerts returns the alerts that fire in Prometheus, or none if Prometheus does not respond.
func firingAlerts(address string) map[string]bool {
	firing := map[string]bool{}
	res, err := http.Get("http://" + address + "/api/v1/alerts")
	if err != nil {
		return firing
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return firing
	}
	var response struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if json.Unmarshal(text, &response) == nil {
		for _, a := range response.Data.Alerts {
			if a.State == "firing" {
				firing[a.Labels["alertname"]] = true
			}
		}
	}
	return firing
}
