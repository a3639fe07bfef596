package deliver_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// respondWithBodies responds to each call with status 200 and the next body, and repeats the last body.
func respondWithBodies(bodies ...string) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, bodies[min(n, len(bodies))-1])
	}
}

// bodyOf returns the body of the n-th call.
func bodyOf(receiver *cluster.Receiver, n int) string {
	receiver.Mu.Lock()
	defer receiver.Mu.Unlock()
	return string(receiver.Bodies[n-1])
}

func addRobot(t *testing.T, w *cluster.Cluster, url, format string, events ...string) api.EndpointResponse {
	t.Helper()
	e, err := w.Client.AddEndpoint(t.Context(), api.EndpointRequest{URL: url, Format: format, Events: events})
	require.NoError(t, err)
	require.Equal(t, format, e.Format)
	return e
}

// deliveryTo returns the first of all deliveries that is to an endpoint.
func deliveryTo(t *testing.T, all []api.DeliveryResponse, to api.EndpointResponse) api.DeliveryResponse {
	t.Helper()
	i := slices.IndexFunc(all, func(d api.DeliveryResponse) bool { return d.EndpointID == to.ID })
	require.GreaterOrEqual(t, i, 0)
	return all[i]
}

// insertAlert inserts an alert since a fixed time in 2026 and its event, and calls relay. If the event is alert.cleared, the cluster
// needs RETENTION_LOG_DAYS=0: otherwise maintenance deletes the alert, because it was cleared long ago.
func insertAlert(w *cluster.Cluster, event, kind, queue string, value, threshold float64) {
	w.Admin.Exec(`with alert as (
			insert into alerts (id, kind, queue, value, threshold, since, cleared_at, cleared_value)
			select $1, $3, $4, $5, $6, '2026-01-02T03:04:05Z', at, case when at is not null then $5::float8 end
			from (select case when $2 = 'alert.cleared' then '2026-01-02T03:14:05Z'::timestamptz end) cleared (at))
		insert into event_outbox (kind, ids) values ($2, array[$1::uuid])`, task.NewID(), event, kind, queue, value, threshold)
	w.Admin.Tick("relay")
}

const backlogText = "[Sendonce] Alert: backlog, queue marketing\\nValue 1200, threshold 1000, since 2026-01-02 03:04:05 UTC\\n" +
	"[Sendonce] 告警：积压，队列 marketing\\n当前值 1200，阈值 1000，开始于 2026-01-02 03:04:05 UTC"

func TestRobotsReceiveAlerts(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, format, accepts, body string }{
		{"slack", "slack", "ok", `{"text":"%s"}`},
		{"dingtalk", "dingtalk", `{"errcode":0,"errmsg":"ok"}`, `{"msgtype":"text","text":{"content":"%s"}}`},
		{"wecom", "wecom", `{"errcode":0,"errmsg":"ok"}`, `{"msgtype":"text","text":{"content":"%s"}}`},
		{"feishu", "feishu", `{"StatusCode":0,"StatusMessage":"success","code":0,"data":{},"msg":"success"}`, `{"msg_type":"text","content":{"text":"%s"}}`},
		{"feishu without code", "feishu", `{"Extra":null,"StatusCode":0,"StatusMessage":"success"}`, `{"msg_type":"text","content":{"text":"%s"}}`},
	}
	w := cluster.Open(t)
	var groups []*cluster.Receiver
	var robots []api.EndpointResponse
	for _, c := range cases {
		group := cluster.NewReceiver(t, respondWithBodies(c.accepts))
		groups, robots = append(groups, group), append(robots, addRobot(t, w, group.URL, c.format, "alert.raised"))
	}
	insertAlert(w, "alert.raised", "backlog", "marketing", 1200, 1000)
	delivered := cluster.WaitDeliveries(w, "delivered", len(cases))
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			group, delivery := groups[i], deliveryTo(t, delivered, robots[i])
			require.Equal(t, "sendonce.alert.raised.v1", delivery.EventType)
			require.Len(t, delivery.Tries, 1)
			require.Equal(t, 1, group.Calls())
			require.JSONEq(t, fmt.Sprintf(c.body, backlogText), bodyOf(group, 1))
			shown, err := w.Client.Delivery(t.Context(), delivery.ID)
			require.NoError(t, err)
			require.Equal(t, strings.ReplaceAll(backlogText, `\n`, "\n"), shown.Text)
			require.NotEmpty(t, shown.Payload)
			require.Equal(t, "application/json; charset=utf-8", group.Headers[0].Get("Content-Type"))
			for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
				require.Empty(t, group.Headers[0].Get(name), "robots do not verify %s", name)
			}
		})
	}
}

func TestRefusalOfRobotIsRetried(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, format, refuses, accepts, problem string }{
		{"dingtalk", "dingtalk", `{"errcode":310000,"errmsg":"keywords not in content"}`, `{"errcode":0,"errmsg":"ok"}`,
			"the robot refused the text with errcode 310000: its response says why"},
		{"wecom", "wecom", `{"errcode":93000,"errmsg":"invalid webhook url"}`, `{"errmsg":"` + strings.Repeat("long", 4000) + `","errcode":0}`,
			"the robot refused the text with errcode 93000: its response says why"},
		{"feishu", "feishu", `{"code":19024,"msg":"Key Words Not Found","data":{}}`, `{"code":0,"msg":"success"}`,
			"the robot refused the text with code 19024: its response says why"},
		{"feishu status", "feishu", `{"StatusCode":9499,"msg":"Bad Request"}`, `{"code":0}`, "the robot refused the text with StatusCode 9499: its response says why"},
		{"no robot", "wecom", `<html>log in</html>`, `{"errcode":0}`, "the response is not that of a robot of this format: check the URL and the format"},
		{"another robot", "feishu", `{"errcode":0,"errmsg":"ok"}`, `{"code":0}`, "the response is not that of a robot of this format: check the URL and the format"},
		{"no body", "dingtalk", ``, `{"errcode":0}`, "the response is not that of a robot of this format: check the URL and the format"},
	}
	w := cluster.Open(t)
	var groups []*cluster.Receiver
	var robots []api.EndpointResponse
	for _, c := range cases {
		group := cluster.NewReceiver(t, respondWithBodies(c.refuses, c.accepts))
		groups, robots = append(groups, group), append(robots, addRobot(t, w, group.URL, c.format, "alert.raised"))
	}
	insertAlert(w, "alert.raised", "failure_rate", "default", 0.255, 0.2)
	w.Admin.WaitCount(len(cases), `select count(*) from webhook_deliveries where state = 0 and attempts = 1`)
	pending := cluster.WaitDeliveries(w, "pending", len(cases))
	for i, c := range cases {
		refused := deliveryTo(t, pending, robots[i])
		require.Equal(t, 200, refused.Tries[0].Status, c.name)
		require.Equal(t, c.problem, refused.Tries[0].Error, c.name)
		failing, err := w.Client.Endpoint(t.Context(), robots[i].ID)
		require.NoError(t, err)
		require.NotNil(t, failing.FailingSince, "%s: a refusal is a failure of the endpoint", c.name)
	}

	cluster.MakeDue(w)
	delivered := cluster.WaitDeliveries(w, "delivered", len(cases))
	for i, c := range cases {
		require.Len(t, deliveryTo(t, delivered, robots[i]).Tries, 2, c.name)
		require.Equal(t, 2, groups[i].Calls(), c.name)
		require.Equal(t, bodyOf(groups[i], 1), bodyOf(groups[i], 2), c.name)
		recovered, err := w.Client.Endpoint(t.Context(), robots[i].ID)
		require.NoError(t, err)
		require.Nil(t, recovered.FailingSince, c.name)
	}
}

func TestSlackRefusesByStatus(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, "RETENTION_LOG_DAYS=0") // see insertAlert
	channel := cluster.NewReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, "action_prohibited")
			return
		}
		_, _ = io.WriteString(w, "ok")
	})
	addRobot(t, w, channel.URL, "slack", "alert.cleared")
	insertAlert(w, "alert.cleared", "stream_full", "EVENTS", 0.7, 0.8)
	w.Admin.WaitCount(1, `select count(*) from webhook_deliveries where attempts >= 1`)
	cluster.MakeDue(w)
	delivered := cluster.WaitDeliveries(w, "delivered", 1)
	require.Equal(t, "returned 403 Forbidden", delivered[0].Tries[0].Error)
	require.Equal(t, "action_prohibited", delivered[0].Tries[0].Response)
	require.JSONEq(t, `{"text":"[Sendonce] Alert cleared: stream almost full, stream EVENTS\nValue 70.0%, threshold 80.0%, since 2026-01-02 03:04:05 UTC, cleared 2026-01-02 03:14:05 UTC\n`+
		`[Sendonce] 告警解除：流将满，流 EVENTS\n当前值 70.0%，阈值 80.0%，开始于 2026-01-02 03:04:05 UTC，解除于 2026-01-02 03:14:05 UTC"}`, bodyOf(channel, 2))
}

func TestRobotReceivesTestsAndDisabledEndpoints(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	group, gone := cluster.NewReceiver(t, respondWithBodies(`{"errcode":0,"errmsg":"ok"}`)), cluster.NewReceiver(t, cluster.RespondWith(410))
	robot := addRobot(t, w, group.URL, "wecom", "webhook.disabled")
	_, err := w.Client.TestEndpoint(t.Context(), robot.ID)
	require.NoError(t, err)
	cluster.WaitDeliveries(w, "delivered", 1)
	require.Contains(t, bodyOf(group, 1), "[Sendonce] Test: this robot is set up to receive alerts.")

	disabled := w.AddEndpoint(gone.URL+"/secret-path", "task.succeeded")
	w.FinishTask()
	cluster.WaitDeliveries(w, "delivered", 2)
	text := bodyOf(group, 2)
	require.Contains(t, text, "[Sendonce] Webhook endpoint disabled: 127.0.0.1:")
	require.Contains(t, text, "Reason: it returned 410, failing since ")
	require.Contains(t, text, "id "+disabled.ID)
	require.Contains(t, text, "返回了 410")
	require.NotContains(t, text, "secret-path")
}

// hmacBase64 returns the base64 of the HMAC-SHA256 of a text.
func hmacBase64(key, text string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// requireNow requires that a number of units of time since 1970 is about now.
func requireNow(t *testing.T, number string, unit time.Duration) {
	t.Helper()
	n, err := strconv.ParseInt(number, 10, 64)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), time.Unix(0, n*int64(unit)), time.Minute)
}

func TestRobotsWithSecretAreSigned(t *testing.T) {
	t.Parallel()
	const secret = "SECad0robot0of0tests"
	for _, c := range []struct {
		format, accepts string
		verify          func(t *testing.T, query url.Values, body map[string]any)
	}{
		{"dingtalk", `{"errcode":0,"errmsg":"ok"}`, func(t *testing.T, query url.Values, body map[string]any) {
			requireNow(t, query.Get("timestamp"), time.Millisecond)
			require.Equal(t, hmacBase64(secret, query.Get("timestamp")+"\n"+secret), query.Get("sign"))
			require.Equal(t, []string{"a+b&c=d"}, query["access_token"], "the query of the URL is kept")
			require.NotContains(t, body, "sign")
		}},
		{"feishu", `{"code":0,"msg":"success"}`, func(t *testing.T, query url.Values, body map[string]any) {
			timestamp, _ := body["timestamp"].(string)
			requireNow(t, timestamp, time.Second)
			require.Equal(t, hmacBase64(timestamp+"\n"+secret, ""), body["sign"])
			require.Equal(t, url.Values{"access_token": {"a+b&c=d"}}, query)
			require.Equal(t, "text", body["msg_type"])
		}},
	} {
		t.Run(c.format, func(t *testing.T) {
			t.Parallel()
			w := cluster.Open(t)
			queries := make(chan url.Values, 1)
			group := cluster.NewReceiver(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				queries <- r.URL.Query()
				_, _ = io.WriteString(w, c.accepts)
			})
			robot, err := w.Client.AddEndpoint(t.Context(), api.EndpointRequest{
				URL: group.URL + "/send?access_token=a%2Bb%26c%3Dd", Format: c.format, Events: []string{"alert.raised"}, Secret: secret,
			})
			require.NoError(t, err)
			require.Empty(t, robot.Secret)
			_, err = w.Client.TestEndpoint(t.Context(), robot.ID)
			require.NoError(t, err)
			cluster.WaitDeliveries(w, "delivered", 1)
			var body map[string]any
			require.NoError(t, json.Unmarshal([]byte(bodyOf(group, 1)), &body))
			c.verify(t, <-queries, body)
		})
	}
}

// insertFlood inserts n alerts and their events.
func insertFlood(w *cluster.Cluster, n int) {
	w.Admin.Exec(`with alert as (
			insert into alerts (id, kind, queue, value, threshold) select gen_random_uuid(), 'backlog', 'flood-' || n, 1200, 1000 from generate_series(1, $1) n
			returning id)
		insert into event_outbox (kind, ids) select 'alert.raised', array_agg(id) from alert`, n)
}

// A flood of alerts, for example about many queues of one caller, must not make the vendor refuse the alerts after it.
func TestAlertsAtTheSameTimeAreCombinedForRobot(t *testing.T) {
	t.Parallel()
	const flood = 20
	w := cluster.Open(t)
	group := cluster.NewReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n > 3 {
			_, _ = io.WriteString(w, `{"errcode":45009,"errmsg":"api freq out of limit"}`)
			return
		}
		_, _ = io.WriteString(w, `{"errcode":0,"errmsg":"ok"}`)
	})
	addRobot(t, w, group.URL, "wecom", "alert.raised")
	insertFlood(w, flood)
	insertAlert(w, "alert.raised", "backlog", "marketing", 1200, 1000)
	delivered := cluster.WaitDeliveries(w, "delivered", flood+1)
	for _, d := range delivered {
		require.Len(t, d.Tries, 1)
	}
	queues := map[string]bool{}
	for n := range group.Calls() {
		for _, queue := range regexp.MustCompile(`flood-\d+|marketing`).FindAllString(bodyOf(group, n+1), -1) {
			queues[queue] = true
		}
	}
	require.Len(t, queues, flood+1)
}

// A vendor may refuse a text because of one event in it. Each event is then tried again in a text of its own.
func TestEventsOfRefusedTextAreTriedAlone(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	var group *cluster.Receiver
	group = cluster.NewReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if strings.Contains(bodyOf(group, n), " events ") {
			_, _ = io.WriteString(w, `{"errcode":310000,"errmsg":"sensitive word"}`)
			return
		}
		_, _ = io.WriteString(w, `{"errcode":0,"errmsg":"ok"}`)
	})
	addRobot(t, w, group.URL, "dingtalk", "alert.raised")
	insertFlood(w, 4)
	w.Admin.Tick("relay")
	cluster.WaitDeliveries(w, "delivered", 4)
	require.Greater(t, group.Calls(), 4, "texts with several events were refused before")
}
