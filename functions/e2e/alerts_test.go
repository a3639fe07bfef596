package e2e

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// sendTasks has n tasks sent.
func sendTasks(s *server, n int) {
	s.t.Helper()
	items := strings.Repeat(`,{"phone_number":"13800138000","content":"x"}`, n)[1:]
	sent := s.post("/api/v1/sms/send/batch", `{"items":[`+items+`]}`)
	require.Equal(s.t, 200, sent.status, sent.text)
}

// failTasks has n tasks sent and reported as failed for good.
func failTasks(s *server, n int, errorCode string) {
	s.t.Helper()
	sendTasks(s, n)
	var reports []string
	for _, task := range s.get("/api/v1/sms/tasks/pending?app_id=app&limit=1000").list() {
		reports = append(reports, fmt.Sprintf(`{"task_id":%q,"status":3,"error_code":%q}`, task["task_id"], errorCode))
	}
	require.Len(s.t, reports, n)
	done := s.post("/api/v1/sms/report/batch", `{"app_id":"app","items":[`+strings.Join(reports, ",")+`]}`)
	require.Equal(s.t, 200, done.status, done.text)
	require.NotContains(s.t, done.text, `"error":`)
}

// alertEvent reads the n-th call as the event of an alert.
func alertEvent(v *receiver, t *testing.T, n int, secret string) (api.WebhookEvent, api.AlertEventData) {
	t.Helper()
	e := v.event(t, n, secret)
	var data api.AlertEventData
	require.NoError(t, json.Unmarshal(e.Data, &data))
	require.Equal(t, e.Subject, data.AlertID)
	return e, data
}

// startThree are three processes with all functions, and a door that leads the
// trigger to them in turn.
func startThree(o *postOffice, env ...string) (houses []*server) {
	o.t.Helper()
	for range 3 {
		houses = append(houses, o.at(o.start("", env...)))
	}
	var n atomic.Uint64
	door := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		if to, err := url.Parse(houses[n.Add(1)%3].url); err == nil {
			r.SetURL(to)
		}
	}})
	o.t.Cleanup(door.Close)
	o.trigger(door.URL)
	return houses
}

func TestABurstOfFailuresIsOneIncidentThatIsToldOnceAndClearsByItself(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	houses := startThree(o, allowLoopback, "ALERT_WINDOW=10s", "TASK_EVENTS=none")
	shop := newReceiver(t, nil)
	made := houses[0].post(endpoints, fmt.Sprintf(`{"url":%q,"events":["alert.raised","alert.cleared"]}`, shop.URL))
	require.Equal(t, 200, made.status, made.text)
	secret := made.data("secret").(string)

	var incidents []string
	for n := range 2 {
		failTasks(houses[n], 25, "E")
		stop := make(chan struct{})
		var looks sync.WaitGroup
		for _, h := range houses { // beside those that the trigger wakes
			looks.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
						if r := h.tick("sweep"); r.status != 204 {
							t.Error(r.text)
						}
					}
				}
			})
		}
		raised, data := alertEvent(shop, t, 2*n+1, secret)
		require.Equal(t, "sendonce.alert.raised.v1", raised.Type)
		require.Equal(t, api.AlertEventData{
			AlertID: raised.Subject, Kind: "failure_rate", Queue: "default", Value: 1, Threshold: 0.2, Since: data.Since,
		}, data)
		close(stop)
		looks.Wait()
		incidents = append(incidents, raised.Subject)
		open := houses[1].get("/api/v1/admin/alerts").data("items").([]any)
		require.Len(t, open, n+1)
		require.Equal(t, raised.Subject, open[0].(map[string]any)["id"], "the open one is the first")
		require.NotContains(t, open[0], "cleared_at")

		// Nothing else happens: the trigger's wake-ups alone lead to the end.
		cleared, data := alertEvent(shop, t, 2*n+2, secret)
		require.Equal(t, "sendonce.alert.cleared.v1", cleared.Type)
		require.Equal(t, raised.Subject, cleared.Subject)
		require.Less(t, raised.Sequence, cleared.Sequence)
		require.NotNil(t, data.ClearedAt)
		require.Zero(t, data.Value)
	}
	require.NotEqual(t, incidents[0], incidents[1], "a second burst is a second incident")
	require.Equal(t, 2, o.looker.count(`select count(*) from alerts where cleared_at is not null`))
	require.Equal(t, 4, shop.got())
	events, err := o.jetStream().Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	info, err := events.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, info.State.LastSeq, "each CloudEvent was published once")
}

func TestABacklogIsOneIncidentAndWhenItIsOverNothingRuns(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	proxy := sandbox.NewProxy(t, o.url)
	asked := watch(proxy)
	c := o.grow(allowLoopback, "DATABASE_URL="+proxy.URL(), "ALERT_BACKLOG=bulk=1;*=5", "ALERT_WINDOW=10s", "TASK_EVENTS=none")
	shop := newReceiver(t, nil)
	secret := c.endpoint(shop.URL).Secret

	send := slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "hi"}}, 6)
	_, err := c.api("submit").SendBatch(t.Context(), send)
	require.NoError(t, err)
	raised, data := alertEvent(shop, t, 1, secret)
	require.Equal(t, "sendonce.alert.raised.v1", raised.Type)
	require.Equal(t, api.AlertEventData{AlertID: raised.Subject, Kind: "backlog", Queue: "default", Value: 6, Threshold: 5, Since: data.Since}, data)

	ids, err := claimAll(c.api("claim"))
	require.NoError(t, err)
	require.Len(t, ids, 6)
	cleared, _ := alertEvent(shop, t, 2, secret)
	require.Equal(t, "sendonce.alert.cleared.v1", cleared.Type)
	require.Equal(t, raised.Subject, cleared.Subject)
	reports, succeeded := make([]api.ReportRequest, len(ids)), 2
	for i, id := range ids {
		reports[i] = api.ReportRequest{TaskID: id, Status: &succeeded}
	}
	_, err = c.api("report").ReportBatch(t.Context(), "app", reports)
	require.NoError(t, err)
	waitDelivered(c, 2)
	require.NotZero(t, waitIdle(c, asked)["sweep"])
	require.Equal(t, 2, shop.got())
}

// serverWithoutNATS is all functions in one process without NATS: it looks when it is told to.
func serverWithoutNATS(t *testing.T, env ...string) *server {
	t.Helper()
	url, bin := sandbox.NewDatabase(t), binary(t)
	p := startProcess(t, bin, settings(url, append(env, "ALERT_WINDOW=10s")...))
	return (&server{t: t, url: address(t, p), user: "admin", password: "secret"}).connect(url)
}

func TestWithThresholdsOfZeroNothingIsRaised(t *testing.T) {
	t.Parallel()
	h := serverWithoutNATS(t, "ALERT_FAILURE_RATE=0", "ALERT_BACKLOG=0")
	failTasks(h, 50, "E")
	sendTasks(h, 50)
	require.Equal(t, 204, h.tick("sweep").status, "the first look of a process is at once")
	require.Zero(t, h.count(`select count(*) from alerts`))
}

func TestUsersWhoDidNotConsentAreNoFailure(t *testing.T) {
	t.Parallel()
	h := serverWithoutNATS(t)
	failTasks(h, 50, "43101")
	require.Equal(t, 204, h.tick("sweep").status, "the first look of a process is at once")
	require.Zero(t, h.count(`select count(*) from alerts`))
	failTasks(h, 20, "40003")
	require.Eventually(t, func() bool {
		require.Equal(t, 204, h.tick("sweep").status)
		return h.count(`select count(*) from alerts where kind = 'failure_rate' and value = 1`) == 1
	}, waitLimit, 100*time.Millisecond)
}

func TestOnlyAnAdminMayAskForAlerts(t *testing.T) {
	t.Parallel()
	s := serve(t)
	refused := s.caller("shop", "submitter").post(endpoints, `{"url":"https://shop.test/","events":["task.failed","alert.raised"]}`)
	require.Equal(t, 400, refused.status)
	require.Equal(t, []string{"events[1]"}, refused.fields())
	require.Contains(t, refused.text, "only admins are told of alerts")
	require.Equal(t, 200, s.caller("ops", "admin").post(endpoints, `{"url":"https://ops.test/","events":["alert.cleared"]}`).status)
	require.Equal(t, 403, s.caller("app", "sender").get("/api/v1/admin/alerts").status)
}

func TestAnAlertIsLoggedOnceWhenItIsRaisedAndOnceWhenItIsCleared(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), binary(t)
	var processes []*sandbox.Process
	var houses []*server
	for range 2 {
		p := startProcess(t, bin, settings(url, "ALERT_WINDOW=10s", "ALERT_BACKLOG=5"))
		processes = append(processes, p)
		houses = append(houses, (&server{t: t, url: address(t, p), user: "admin", password: "secret"}).connect(url))
	}
	type line struct {
		Level, Msg, Kind, Queue string
		ID                      string `json:"alert_id"`
		Value, Threshold        float64
	}
	logged := func() (lines []line) {
		for _, p := range processes {
			for text := range strings.Lines(p.Output()) {
				var l line
				if json.Unmarshal([]byte(text), &l) == nil && strings.HasPrefix(l.Msg, "alert ") {
					lines = append(lines, l)
				}
			}
		}
		return lines
	}
	look := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, h := range houses {
				require.Equal(t, 204, h.tick("sweep").status)
			}
			return len(logged()) >= n
		}, waitLimit, 100*time.Millisecond)
	}
	sendTasks(houses[0], 6)
	look(1)
	sendTasks(houses[1], 1) // it stays open, and is no other
	require.Len(t, houses[0].get("/api/v1/sms/tasks/pending?app_id=app&limit=1000").list(), 7)
	look(2)
	lines := logged()
	require.Len(t, lines, 2)
	if lines[0].Level == "INFO" { // of the first process, which cleared what the other raised
		lines[0], lines[1] = lines[1], lines[0]
	}
	id := houses[0].text(`select id::text from alerts`)
	require.Equal(t, line{Level: "WARN", Msg: "alert raised", Kind: "backlog", Queue: "default", ID: id, Value: 6, Threshold: 5}, lines[0])
	require.Equal(t, line{Level: "INFO", Msg: "alert cleared", Kind: "backlog", Queue: "default", ID: id, Value: 0, Threshold: 5}, lines[1])
}
