package e2e

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/task"
)

func (s checkedClient) webhooks() {
	s.T.Helper()
	shop, bank := s.as(s.NewCaller("hooks", "submitter")), s.as(s.NewCaller("bank", "submitter"))
	endpoint := shop.post(200, cluster.EndpointsPath, `{"url":"https://shop.test/events","description":"orders","events":["task.succeeded","webhook.disabled"]}`)
	id := endpoint.Data("id").(string)
	at := cluster.EndpointsPath + "/" + id
	shop.post(400, cluster.EndpointsPath, `{"url":"ftp://shop.test/","events":["task.lost"]}`)
	for range 19 {
		shop.post(200, cluster.EndpointsPath, `{"url":"http://shop.test/events"}`)
	}
	shop.post(409, cluster.EndpointsPath, `{"url":"https://shop.test/events"}`)
	after := shop.get(200, cluster.EndpointsPath+"?limit=1").Data("next_after")
	require.Equal(s.T, id, after)
	require.Len(s.T, shop.get(200, fmt.Sprintf("%s?after=%v", cluster.EndpointsPath, after)).Data("items"), 19)
	s.get(200, fmt.Sprintf("%s?caller_id=%v", cluster.EndpointsPath, endpoint.Data("caller_id")))
	bank.get(403, fmt.Sprintf("%s?caller_id=%v", cluster.EndpointsPath, endpoint.Data("caller_id")))
	shop.get(200, at)
	shop.post(200, at+"/disable", "")
	shop.post(200, at+"/enable", `{}`)
	shop.post(200, at+"/rotate-secret", "")
	robot := bank.post(200, cluster.EndpointsPath, `{"url":"https://robot.test/","events":["webhook.disabled"],"format":"dingtalk","secret":"SEC1"}`)
	bank.post(409, fmt.Sprintf("%s/%v/rotate-secret", cluster.EndpointsPath, robot.Data("id")), "")
	bank.post(400, cluster.EndpointsPath, `{"url":"https://robot.test/","events":["webhook.disabled"],"format":"wecom","secret":"SEC1"}`)
	for range 10 {
		shop.post(200, at+"/test", "")
	}
	shop.post(429, at+"/test", "")
	s.Exec(`delete from webhook_deliveries`)
	for _, action := range []string{"/disable", "/enable", "/rotate-secret", "/test"} {
		bank.post(404, at+action, "")
	}
	bank.get(404, at)
	bank.call(404, "DELETE", at, "")
	shop.get(200, cluster.SigningSecretPath)
	shop.post(200, cluster.SigningSecretPath+"/rotate", "")
	shop.get(200, cluster.SigningSecretPath)

	delivery := cluster.InsertDelivery(s.Client, id, cluster.UnknownIDPath[1:])
	shop.get(200, cluster.DeliveriesPath+"?state=pending")
	cluster.InsertAttempts(s.Client, delivery)
	cluster.InsertDelivery(s.Client, id, task.NewID())
	shop.get(200, cluster.DeliveriesPath+"?limit=1")
	shop.get(200, fmt.Sprintf("%s?state=delivered&endpoint_id=%s&task_id=%s&caller_id=%v", cluster.DeliveriesPath, id, cluster.UnknownIDPath[1:], endpoint.Data("caller_id")))
	shop.get(400, cluster.DeliveriesPath+"?state=lost")
	bank.get(403, cluster.DeliveriesPath+"?caller_id=0")
	shop.get(200, cluster.DeliveriesPath+"/"+delivery)
	bank.get(404, cluster.DeliveriesPath+"/"+delivery)
	shop.post(200, cluster.DeliveriesPath+"/"+delivery+"/resend", "")
	bank.post(404, cluster.DeliveriesPath+"/"+delivery+"/resend", "")
	shop.post(200, cluster.DeliveriesPath+"/resend", `{"since":"2023-12-01T08:00:00Z"}`)
	shop.post(400, cluster.DeliveriesPath+"/resend", `{"limit":0}`)
	bank.post(403, cluster.DeliveriesPath+"/resend", `{"since":"2023-12-01T08:00:00Z","caller_id":"0"}`)
	shop.call(204, "DELETE", at, "")
	require.Equal(s.T, "failed", shop.get(200, cluster.DeliveriesPath+"/"+delivery).Data("state"))
	shop.post(409, cluster.DeliveriesPath+"/"+delivery+"/resend", "")
	s.get(200, cluster.AdminPath+"actions?subject=webhook/"+id)

	revoked := bank.post(200, cluster.EndpointsPath, `{"url":"https://bank.test/events"}`)
	s.post(200, fmt.Sprintf("%scallers/%v/revoke", cluster.AdminPath, revoked.Data("caller_id")), "")
	for _, action := range []string{"enable", "test"} {
		s.post(409, fmt.Sprintf("%s/%v/%s", cluster.EndpointsPath, revoked.Data("id"), action), "")
	}
}

// insertAlert inserts a cleared or an open alert and returns its id.
func insertAlert(s *cluster.Client, queue string, cleared bool) task.ID {
	id := task.NewID()
	s.Exec(`insert into alerts (id, kind, queue, value, threshold, cleared_at, cleared_value)
		values ($1, 'failure_rate', $2, 0.35, 0.2, case when $3 then now() end, case when $3 then 0.04 end)`, id, queue, cleared)
	return id
}

func (s checkedClient) alerts() {
	s.T.Helper()
	insertAlert(s.Client, "wechat", true)
	insertAlert(s.Client, "wechat", false)
	page := s.get(200, cluster.AdminPath+"alerts?limit=1")
	s.get(200, fmt.Sprintf("%salerts?after=%v", cluster.AdminPath, page.Data("next_after")))
	s.get(400, cluster.AdminPath+"alerts?after=closed.7")
}

func (s checkedClient) deadLetters() {
	s.T.Helper()
	s.Exec(`insert into dead_letters (function, event_id, event_type, event, reason, attempts)
		select 'deliver', 'evt-' || n, 'sendonce.task.succeeded.v1', '{"state":"succeeded"}', 'has no subject', n from generate_series(1, 2) n`)
	page := s.get(200, cluster.AdminPath+"dead-letters?limit=1")
	s.get(200, fmt.Sprintf("%sdead-letters?after=%v", cluster.AdminPath, page.Data("next_after")))
	at := fmt.Sprintf("%sdead-letters/%v/dismiss", cluster.AdminPath, page.Data("next_after"))
	s.post(400, at, `{"reason":" "}`)
	s.post(204, at, `{"reason":"handled by phone"}`)
	s.post(404, at, `{"reason":"handled by phone"}`)
	s.get(200, fmt.Sprintf("%sactions?subject=dead_letter/%v", cluster.AdminPath, page.Data("next_after")))
}

// postEvents requires that the stream EVENTS has n events, and posts them to the function deliver, as a trigger does.
func postEvents(s *cluster.Client, nc *nats.Conn, n uint64) {
	s.T.Helper()
	js, err := jetstream.New(nc)
	require.NoError(s.T, err)
	events, err := js.Stream(s.T.Context(), bus.StreamEvents)
	require.NoError(s.T, err)
	info, err := events.Info(s.T.Context())
	require.NoError(s.T, err)
	require.Equal(s.T, n, info.State.Msgs)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := events.GetMsg(s.T.Context(), seq)
		require.NoError(s.T, err)
		var header []string
		for name := range m.Header {
			header = append(header, name, m.Header.Get(name))
		}
		posted := s.Do("POST", "/events/deliver", string(m.Data), header...)
		require.Equal(s.T, 204, posted.Status, posted.Text)
	}
}

func TestContractCoversEvents(t *testing.T) {
	t.Parallel()
	s, nc := cluster.OwnServer.ServeWithNATS(t)
	cluster.RegisterEndpoint(s, `{"url":"https://shop.test/events"}`)
	location, _ := cluster.RegisterEndpoint(s, `{"url":"https://gone.test/","events":["task.held"]}`)
	disabledID := path.Base(location)
	for i, report := range []string{`"status":2,"sent_at":"2023-12-01T18:00:00+08:00"`, `"status":3,"error_code":"E","error_message":"拒绝"`} {
		sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","source":"crm","metadata":{"order":[1.0]},"callback_url":"https://shop.test/callback"}`).RequireOK()
		require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=app").List(), 1)
		done := s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app",%s}`, sent.Data("task_id"), report))
		require.Equal(t, 200, done.Status, "%d: %s", i, done.Text)
	}
	s.Exec(`update webhook_endpoints set enabled = false, disabled_reason = 'failing', disabled_at = now(), failing_since = now() where id = $1`, disabledID)
	s.Exec(`insert into event_outbox (kind, ids) values ('webhook.disabled', array[$1::uuid])`, disabledID)
	s.Exec(`insert into event_outbox (kind, ids) values ('alert.raised', array[$1::uuid, $2::uuid]), ('alert.cleared', array[$1::uuid])`,
		insertAlert(s, "wechat", true), insertAlert(s, "default", false))
	require.Equal(t, 204, s.Tick("relay").Status)
	postEvents(s, nc, 6)

	c, delivered := contract.Read(t), map[string]int{}
	rows, err := s.Owner.Query(t.Context(), `select w.event_type, e.payload from webhook_deliveries w join webhook_events e on e.id = w.event_id`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var kind, payload string
		require.NoError(t, rows.Scan(&kind, &payload))
		delivered[kind]++
		hook := "taskEvent"
		if strings.Contains(kind, "webhook") {
			hook = "endpointDisabled"
		} else if strings.Contains(kind, "alert") {
			hook = "alert"
		}
		require.NoError(t, c.CheckJSON(contract.Pointer("webhooks", hook, "post", "requestBody", "content", "application/cloudevents+json", "schema"), []byte(payload)), payload)
		require.NotContains(t, payload, "13800138000")
	}
	require.NoError(t, rows.Err())
	require.Equal(t, map[string]int{
		"sendonce.task.succeeded.v1": 2, "sendonce.task.failed.v1": 2, "sendonce.webhook.disabled.v1": 1,
		"sendonce.alert.raised.v1": 2, "sendonce.alert.cleared.v1": 1,
	}, delivered, "outcomes go to the endpoint and the callback URL; events of the disabled endpoint and of alerts go to the other endpoint")
}
