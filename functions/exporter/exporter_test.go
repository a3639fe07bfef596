package exporter_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/exporter"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// samples returns the values of a scrape by name and labels. The value of a histogram is its count.
func samples(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err, text)
	values := map[string]float64{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			key := fmt.Sprintf("%s{%s}", strings.TrimPrefix(name, "sendonce_"), strings.Join(labels, ","))
			switch {
			case m.Counter != nil:
				values[key] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				values[key] = m.GetGauge().GetValue()
			case m.Histogram != nil:
				values[key] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

func scrape(t *testing.T, base string) string {
	t.Helper()
	require.Equal(t, "/exporter/metrics", exporter.Path)
	return cluster.Metrics(t, base+"/exporter") // cluster.Metrics adds /metrics
}

// openWithSampleData starts all functions, and creates unfinished tasks in each state, finished tasks, a paused queue, a stuck message
// (no send left), a paused stream and an open alert.
func openWithSampleData(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := cluster.New(t, "SENDONCE_METRICS=open")
	c.EnsureStreams()
	c.StartWithoutTrigger()
	send := func(more string) {
		c.Admin.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"`+more+`}`).RequireOK()
	}
	claim := func(app string) map[string]any {
		return c.Admin.Get("/api/v1/sms/tasks/pending?limit=1&app_id=" + app).List()[0]
	}
	report := func(task map[string]any, outcome string) {
		c.Admin.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"phone","claim_id":%v,%s}`, task["task_id"], task["claim_id"], outcome)).RequireOK()
	}
	for range 5 {
		send(`,"on_unknown":"hold"`)
	}
	report(claim("phone"), `"status":2`)
	report(claim("phone"), `"status":2`)
	report(claim("phone"), `"status":3`)
	report(claim("phone"), `"outcome":"unknown"`)
	claim("tablet")
	send("")
	send("")
	send(`,"queue":"bulk"`)
	send(fmt.Sprintf(`,"queue":"bulk","send_at":%q`, time.Now().Add(time.Hour).Format(time.RFC3339)))
	c.Admin.Post("/api/v1/admin/queues/bulk/pause", `{"reason":"test"}`).RequireOK()
	c.Save("user:ann")
	c.Admin.Exec(`update message_live set remaining_sends = 0, next_at = null`)
	c.Admin.Exec(`insert into stream_pauses (stream, until, failures, reason) values ('EVENTS', now() + interval '1 hour', 1, 'full')`)
	c.Admin.Exec(`insert into alerts (id, kind, queue, value, threshold) values (gen_random_uuid(), 'backlog', 'default', 2, 1)`)
	return c
}

func TestExporterShowsTasksInEachState(t *testing.T) {
	t.Parallel()
	c := openWithSampleData(t)
	require.NoError(t, storetest.OpenAt(t, c.DatabaseURL).Overview.Count(t.Context(), 0))
	text := scrape(t, c.Admin.URL)
	got := samples(t, text)
	for name, want := range map[string]float64{
		`exporter_up{source=postgres}`:                                       1,
		`exporter_up{source=nats}`:                                           1,
		`queue_tasks{queue=default,state=pending}`:                           2,
		`queue_tasks{queue=default,state=processing}`:                        1,
		`queue_tasks{queue=default,state=held}`:                              1,
		`queue_tasks{queue=default,state=scheduled}`:                         0,
		`queue_tasks{queue=bulk,state=scheduled}`:                            1,
		`queue_tasks{queue=bulk,state=pending}`:                              1,
		`queue_paused{queue=bulk}`:                                           1,
		`queue_paused{queue=default}`:                                        0,
		`tasks_submitted_total{queue=default}`:                               7,
		`tasks_submitted_total{queue=bulk}`:                                  2,
		`tasks_finished_total{outcome=succeeded,queue=default,reason=none}`:  2,
		`tasks_finished_total{outcome=failed,queue=default,reason=rejected}`: 1,
		`tasks_finished_total{outcome=failed,queue=default,reason=timeout}`:  0,
		`task_claims_total{queue=default}`:                                   3,
		`task_wait_seconds{queue=default}`:                                   3,
		`task_duration_seconds{queue=default}`:                               3,
		`sender_tasks{app=tablet}`:                                           1,
		`sender_tasks{app=phone}`:                                            0,
		`sender_reports_total{app=phone,outcome=succeeded}`:                  2,
		`sender_reports_total{app=phone,outcome=failed}`:                     1,
		`messages_stuck{state=sending}`:                                      1,
		`messages_stuck{state=sent}`:                                         0,
		`webhook_endpoints_disabled{}`:                                       0,
		`dead_letters_open{}`:                                                0,
	} {
		value, found := got[name]
		require.True(t, found, "%s in\n%s", name, text)
		require.InDelta(t, want, value, 0, name)
	}
	require.Contains(t, got, `stream_used_ratio{stream=EVENTS}`)
	require.Positive(t, got[`sender_last_claim_timestamp_seconds{app=tablet}`])
	sandbox.RequirePromtoolAccepts(t, text)
}

func TestExporterRequiresTheAdminPassword(t *testing.T) {
	t.Parallel()
	c := cluster.New(t, "SENDONCE_METRICS=admin")
	address := c.Start("exporter")
	status := func(method, password string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, address+exporter.Path, nil)
		require.NoError(t, err)
		req.SetBasicAuth("admin", password)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	require.Equal(t, 200, status(http.MethodGet, "secret"))
	require.Equal(t, 401, status(http.MethodGet, "guess"))
	require.Equal(t, 405, status(http.MethodPost, "secret"))
}

func TestExporterKeepsLastValuesWhilePostgresAndNATSAreDown(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	c := cluster.NewOn(t, proxy.URL(), "SENDONCE_METRICS=open")
	c.EnsureStreams()
	c.StartWithoutTrigger()
	c.Submit()
	read := func() map[string]float64 { return samples(t, scrape(t, c.Admin.URL)) }
	up := func(postgres, nats float64) func() bool {
		return func() bool {
			got := read()
			return got["exporter_up{source=postgres}"] == postgres && got["exporter_up{source=nats}"] == nats
		}
	}
	require.True(t, up(1, 1)())
	before := read()
	require.InDelta(t, 1, before["queue_tasks{queue=default,state=pending}"], 0)

	proxy.Cut()
	require.NoError(t, c.NATS.Stop())
	cluster.Eventually(t, up(0, 0), "both are unavailable")
	after := read()
	for name, value := range before {
		if strings.HasPrefix(name, "exporter_up") {
			continue
		}
		last, found := after[name]
		require.True(t, found, name)
		if !strings.HasSuffix(name, "timestamp_seconds{}") {
			require.InDelta(t, value, last, 0, name)
		}
	}
	require.InDelta(t, before["snapshot_timestamp_seconds{}"], after["snapshot_timestamp_seconds{}"], 30)

	proxy.Restore()
	c.StartNATS()
	cluster.Eventually(t, up(1, 1), "both are available again")
}
