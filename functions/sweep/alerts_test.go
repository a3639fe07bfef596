package sweep_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// failTasks submits n tasks and reports them as failed.
func failTasks(s *cluster.Client, n int) {
	s.T.Helper()
	items := strings.Repeat(`,{"phone_number":"13800138000","content":"x"}`, n)[1:]
	s.Post("/api/v1/sms/send/batch", `{"items":[`+items+`]}`).RequireOK()
	var reports []string
	for _, task := range s.Get("/api/v1/sms/tasks/pending?app_id=app&limit=1000").List() {
		reports = append(reports, fmt.Sprintf(`{"task_id":%q,"status":3,"error_code":"E"}`, task["task_id"]))
	}
	require.Len(s.T, reports, n)
	done := s.Post("/api/v1/sms/report/batch", `{"app_id":"app","items":[`+strings.Join(reports, ",")+`]}`).RequireOK()
	require.NotContains(s.T, done.Text, `"error":`)
}

// startThree starts three processes with all functions, and a trigger that calls them in turn.
func startThree(o *cluster.Cluster, env ...string) (servers []*cluster.Client, processes []*sandbox.Process) {
	o.T.Helper()
	for range 3 {
		servers = append(servers, o.At(o.Start(cluster.All, env...)))
		processes = append(processes, o.Process(cluster.All))
	}
	var n atomic.Uint64
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		if to, err := url.Parse(servers[n.Add(1)%3].URL); err == nil {
			r.SetURL(to)
		}
	}})
	o.T.Cleanup(proxy.Close)
	o.StartTrigger(proxy.URL)
	return servers, processes
}

func TestFailureBurstRaisesOneAlertThatClears(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	o := cluster.New(t)
	servers, processes := startThree(o, "ALERT_WINDOW=10s", "TASK_EVENTS=none")
	shop := cluster.NewReceiver(t, nil)
	_, secret := cluster.RegisterEndpoint(servers[0], fmt.Sprintf(`{"url":%q,"events":["alert.raised","alert.cleared"]}`, shop.URL))

	var alertIDs []string
	for n := range 2 {
		failTasks(servers[n], 25)
		stop := make(chan struct{})
		var sweeps sync.WaitGroup
		for _, h := range servers { // in addition to the sweeps of the trigger
			sweeps.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
						if r := h.Tick("sweep"); r.Status != 204 {
							t.Error(r.Text)
						}
					}
				}
			})
		}
		raised, data := shop.AlertEvent(t, 2*n+1, secret)
		require.Equal(t, "sendonce.alert.raised.v1", raised.Type)
		require.Equal(t, api.AlertEventData{
			AlertID: raised.Subject, Kind: "failure_rate", Queue: "default", Value: 1, Threshold: 0.2, Since: data.Since,
		}, data)
		close(stop)
		sweeps.Wait()
		alertIDs = append(alertIDs, raised.Subject)
		listed := servers[1].Get("/api/v1/admin/alerts").Data("items").([]any)
		require.Len(t, listed, n+1)
		require.Equal(t, raised.Subject, listed[0].(map[string]any)["id"], "open alerts are listed before cleared ones")
		require.NotContains(t, listed[0], "cleared_at")

		// Now only the wake-ups of the trigger call sweep, and the alert clears.
		cleared, data := shop.AlertEvent(t, 2*n+2, secret)
		require.Equal(t, "sendonce.alert.cleared.v1", cleared.Type)
		require.Equal(t, raised.Subject, cleared.Subject)
		require.Less(t, raised.Sequence, cleared.Sequence)
		require.NotNil(t, data.ClearedAt)
		require.Zero(t, data.Value)
	}
	require.NotEqual(t, alertIDs[0], alertIDs[1], "a second burst raises a second alert")
	require.Equal(t, 2, o.Admin.Count(`select count(*) from alerts where cleared_at is not null`))
	require.Equal(t, 4, shop.Calls())
	events, err := o.JetStream().Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	info, err := events.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, info.State.LastSeq, "each CloudEvent was published once")
	logged := map[string]int{}
	for _, p := range processes {
		for line := range strings.Lines(p.Output()) {
			var entry struct {
				Level, Msg, Kind, Queue string
				ID                      string `json:"alert_id"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, "alert ") {
				logged[fmt.Sprint(entry.Level, " ", entry.Msg, " ", entry.Kind, " ", entry.Queue, " ", entry.ID)]++
			}
		}
	}
	want := map[string]int{}
	for _, id := range alertIDs {
		want["WARN alert raised failure_rate default "+id], want["INFO alert cleared failure_rate default "+id] = 1, 1
	}
	require.Equal(t, want, logged, "one process logs each change once")
}
