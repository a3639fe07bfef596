package webhooks_test

import (
	"encoding/base64"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func requireNoSecretsInAuditLog(s *cluster.Client) {
	s.T.Helper()
	require.Positive(s.T, s.Count(`select count(*) from operator_actions`))
	require.Zero(s.T, s.Count(`select count(*) from operator_actions a where a::text like '%whsec_%' or a::text like '%enc_.%'`))
}

const shopURL = `{"url":"https://shop.test/events"}`

func TestEndpointSecretIsShownOnce(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCaller("shop", "submitter")
	created := shop.Post(cluster.EndpointsPath, `{"url":"https://shop.test:8443/events?x=1","description":"订单","events":["task.failed","webhook.disabled"]}`).RequireOK()
	secret, ok := strings.CutPrefix(created.Data("secret").(string), "whsec_")
	require.True(t, ok)
	key, err := base64.StdEncoding.DecodeString(secret)
	require.NoError(t, err)
	require.Len(t, key, 32)
	require.Equal(t, "https://shop.test:8443/events?x=1", created.Data("url"))
	require.Equal(t, "订单", created.Data("description"))
	require.Equal(t, []any{"task.failed", "webhook.disabled"}, created.Data("events"))
	require.Equal(t, true, created.Data("enabled"))

	got := shop.Get(fmt.Sprintf("%s/%v", cluster.EndpointsPath, created.Data("id")))
	require.Equal(t, 200, got.Status)
	require.Equal(t, created.Data("created_at"), got.Data("created_at"))
	for _, shown := range []cluster.Reply{got, shop.Get(cluster.EndpointsPath), s.Get(cluster.AdminPath + "actions")} {
		require.NotContains(t, shown.Text, secret)
	}
	require.Contains(t, shop.Post(cluster.EndpointsPath, shopURL).Text, `"events":[]`, "no events means all events")
	require.Equal(t, []any{"webhook.create"}, s.AuditedActions(fmt.Sprintf("webhook/%v", created.Data("id"))))
	requireNoSecretsInAuditLog(s)
}

func TestEndpointChangesAreAudited(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, shopURL)
	id := path.Base(at)
	delivered, pending := cluster.InsertDelivery(s, id, task.NewID()), cluster.InsertDelivery(s, id, task.NewID())
	cluster.InsertAttempts(s, delivered)
	for range 2 {
		disabled := s.Post(at+"/disable", "").RequireOK()
		require.Equal(t, false, disabled.Data("enabled"))
		require.Equal(t, "by_hand", disabled.Data("disabled_reason"))
		require.NotEmpty(t, disabled.Data("disabled_at"))
		require.Equal(t, "pending", s.Get(cluster.DeliveriesPath+"/"+pending).Data("state"), "the delivery waits")
	}
	for range 2 {
		enabled := s.Post(at+"/enable", "").RequireOK()
		require.Equal(t, true, enabled.Data("enabled"))
		require.Nil(t, enabled.Data("disabled_reason"))
	}
	deleted := s.Do("DELETE", at, "")
	require.Equal(t, 204, deleted.Status)
	require.Empty(t, deleted.Text)
	require.Equal(t, 404, s.Get(at).Status)
	require.Equal(t, 404, s.Do("DELETE", at, "").Status)
	require.Equal(t, "failed", s.Get(cluster.DeliveriesPath+"/"+pending).Data("state"))
	require.Equal(t, "delivered", s.Get(cluster.DeliveriesPath+"/"+delivered).Data("state"))
	require.Equal(t, []any{"webhook.delete", "webhook.enable", "webhook.disable", "webhook.create"}, s.AuditedActions("webhook/"+id), "a call that changes nothing is not recorded")
	requireNoSecretsInAuditLog(s)
}

func TestRotationKeepsOldSecretForADay(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, oldSecret := cluster.RegisterEndpoint(s, shopURL)
	require.Nil(t, s.Get(at).Data("old_secret_until"))
	rotated := s.Post(at+"/rotate-secret", "").RequireOK()
	newSecret := rotated.Data("secret").(string)
	require.NotEqual(t, oldSecret, newSecret)
	require.NotEmpty(t, rotated.Data("rotated_at"))
	until, err := time.Parse(time.RFC3339Nano, rotated.Data("old_secret_until").(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), until, time.Minute)
	require.Equal(t, rotated.Data("old_secret_until"), s.Get(at).Data("old_secret_until"))
	require.Zero(t, s.Count(`select count(*) from webhook_endpoints where secret in ($1, $2) or old_secret in ($1, $2)`, newSecret, oldSecret), "secrets are stored encrypted")

	s.Exec(`update webhook_endpoints set old_secret_until = now()`)
	require.Nil(t, s.Get(at).Data("old_secret_until"), "the day is over")
	require.Equal(t, []any{"webhook.rotate", "webhook.create"}, s.AuditedActions("webhook/"+path.Base(at)))
	requireNoSecretsInAuditLog(s)
}

func TestSigningSecretIsCreatedOnFirstReadPerCaller(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	first := shop.Get(cluster.SigningSecretPath).RequireOK()
	require.Regexp(t, `^whsec_[A-Za-z0-9+/]{43}=$`, first.Data("secret"))
	require.Equal(t, first.Text, shop.Get(cluster.SigningSecretPath).Text)
	require.NotEqual(t, first.Data("secret"), bank.Get(cluster.SigningSecretPath).Data("secret"))
	require.NotEqual(t, first.Data("secret"), s.Get(cluster.SigningSecretPath).Data("secret"))

	rotated := shop.Post(cluster.SigningSecretPath+"/rotate", "").RequireOK()
	require.NotEqual(t, first.Data("secret"), rotated.Data("secret"))
	require.NotEmpty(t, rotated.Data("old_secret_until"))
	require.Equal(t, rotated.Text, shop.Get(cluster.SigningSecretPath).Text)
	// A signing secret is stored as an endpoint without a URL.
	require.Equal(t, 1, s.Count(`select count(*) from webhook_endpoints where url is null and old_secret is not null`))
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'webhook.rotate' and caller_name = 'shop'`))
	requireNoSecretsInAuditLog(s)

	require.Empty(t, s.Get(cluster.EndpointsPath).Data("items"), "the signing secret is not listed as an endpoint")
	id := s.QueryText(`select id::text from webhook_endpoints where url is null and old_secret is not null`)
	for _, action := range []string{"/disable", "/enable", "/rotate-secret"} {
		require.Equal(t, 404, s.Post(cluster.EndpointsPath+"/"+id+action, "").Status)
	}
	require.Equal(t, 404, s.Do("DELETE", cluster.EndpointsPath+"/"+id, "").Status)
	require.Equal(t, 404, s.Get(cluster.EndpointsPath+"/"+id).Status)
}

func TestEndpointsOfOthersAreHidden(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	at, _ := cluster.RegisterEndpoint(shop, shopURL)
	delivery := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, path.Base(at), task.NewID())
	owner := s.Get(at).Data("caller_id")
	for _, call := range [][2]string{
		{"GET", at}, {"POST", at + "/disable"}, {"POST", at + "/enable"}, {"POST", at + "/rotate-secret"}, {"GET", delivery}, {"POST", delivery + "/resend"}, {"DELETE", at},
	} {
		refused := bank.Do(call[0], call[1], "")
		require.Equal(t, 404, refused.Status, call)
		require.Equal(t, "not_found", refused.Body["error"])
	}
	require.Equal(t, true, shop.Get(at).Data("enabled"))
	for _, path := range []string{cluster.EndpointsPath, cluster.DeliveriesPath} {
		require.Empty(t, bank.Get(path).Data("items"))
		require.Equal(t, 403, bank.Get(fmt.Sprintf("%s?caller_id=%v", path, owner)).Status)
		require.Len(t, shop.Get(fmt.Sprintf("%s?caller_id=%v", path, owner)).Data("items"), 1)
		require.Len(t, s.Get(path).Data("items"), 1, "an admin sees those of all callers")
		require.Len(t, s.Get(fmt.Sprintf("%s?caller_id=%v", path, owner)).Data("items"), 1)
		require.Empty(t, s.Get(path+"?caller_id=0").Data("items"))
	}
	for _, call := range [][2]string{{"POST", at + "/disable"}, {"POST", at + "/enable"}, {"POST", at + "/rotate-secret"}, {"POST", delivery + "/resend"}} {
		require.Equal(t, 200, s.Do(call[0], call[1], "").Status, call)
	}
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'webhook.resend' and caller_name = 'admin'`))
	require.Equal(t, 204, s.Do("DELETE", at, "").Status)
}

func TestEndpointOfRevokedCallerIsNotEnabled(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	at, _ := cluster.RegisterEndpoint(shop, shopURL)
	neighbour, _ := cluster.RegisterEndpoint(bank, shopURL)
	shop.Get(cluster.SigningSecretPath).RequireOK()
	owner := s.Get(at).Data("caller_id")
	callbackEndpoint := s.QueryText(`select id::text from webhook_endpoints where url is null and caller_id = $1::text::bigint`, owner)
	callbackDelivery := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, callbackEndpoint, task.NewID())
	s.Post(callbackDelivery+"/resend", "").RequireOK()
	s.Post(neighbour+"/disable", "").RequireOK()
	s.Post(fmt.Sprintf("%scallers/%v/revoke", cluster.AdminPath, owner), "").RequireOK()
	for _, path := range []string{at + "/enable", callbackDelivery + "/resend"} {
		refused := s.Post(path, "")
		require.Equal(t, 409, refused.Status, path)
		require.Equal(t, "conflict", refused.Body["error"])
		require.Contains(t, refused.Text, "the caller of this endpoint is revoked")
	}
	require.Equal(t, false, s.Get(at).Data("enabled"))
	require.Equal(t, []any{"webhook.create"}, s.AuditedActions("webhook/"+path.Base(at)))
	require.Equal(t, 204, s.Do("DELETE", at, "").Status)
	s.Post(neighbour+"/enable", "").RequireOK()
}

func TestBadEndpointRequestNamesItsFields(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for body, fields := range map[string][]string{
		`{}`: {"url"},
		`{"url":"ftp://a.test","description":"` + strings.Repeat("字", 201) + `","events":["task.lost","task.failed","task.failed",""],"secret":"x"}`: {"url", "description", "events[0]", "events[2]", "events[3]", "secret"},
		`{"url":"https://:443/"}`:                                                   {"url"},
		`{"url":"https://user@a.test/"}`:                                            {"url"},
		`{"url":"https://a.test/\n"}`:                                               {"url"},
		`{"url":"javascript://a.test/%0aalert(1)"}`:                                 {"url"},
		`{"url":"https://a.test/\u0000"}`:                                           {"url"},
		`{"url":["https://a.test/"],"events":"task.failed","description":"\ud800"}`: {"url", "events", "description"},
		`{"url":"https://a.test/","events":["disabled","webhook.enabled","task."]}`: {"events[0]", "events[1]", "events[2]"},

		`{"url":"https://a.test/","events":["alert.raised"],"format":"teams"}`:                {"format"},
		`{"url":"https://a.test/","format":"slack"}`:                                          {"events"},
		`{"url":"https://a.test/","events":["alert.raised","task.failed"],"format":"feishu"}`: {"events"},
	} {
		got := s.Post(cluster.EndpointsPath, body)
		require.Equal(t, 400, got.Status, body)
		require.ElementsMatch(t, fields, got.Fields(), "%s\n%s", body[:min(len(body), 100)], got.Text)
	}
	for query, fields := range map[string][]string{
		cluster.EndpointsPath + "?limit=0&after=7&caller_id=-1&state=pending":                           {"limit", "after", "caller_id", "state"},
		cluster.DeliveriesPath + "?limit=201&after=7&caller_id=-1&state=lost&endpoint_id=1&task_id=%00": {"limit", "after", "caller_id", "state", "endpoint_id", "task_id"},
	} {
		got := s.Get(query)
		require.Equal(t, 400, got.Status)
		require.ElementsMatch(t, fields, got.Fields(), got.Text)
	}
	for _, id := range []string{"1", "x", "%00", "00000000-0000-0000-0000-000000000000", "%27%20or%201=1"} {
		for _, path := range []string{cluster.EndpointsPath + "/" + id, cluster.DeliveriesPath + "/" + id} {
			require.Equal(t, 404, s.Get(path).Status, path)
		}
		require.Equal(t, 404, s.Post(cluster.DeliveriesPath+"/"+id+"/resend", "").Status)
		require.Equal(t, 404, s.Post(cluster.EndpointsPath+"/"+id+"/rotate-secret", "").Status)
	}
	require.Equal(t, 400, s.Post(cluster.EndpointsPath+"/x/disable", `{"reason":"x"}`).Status)
	require.Zero(t, s.Count(`select count(*) from webhook_endpoints`))
	for _, good := range []string{`{"url":"http://a.test"}`, `{"url":"https://[2606:4700::1111]:8443/?a=b","description":"` + strings.Repeat("字", 200) + `"}`,
		`{"url":"https://例子.test/","events":["task.scheduled","task.pending","task.processing","task.held","task.succeeded","task.failed","webhook.disabled"]}`} {
		s.Post(cluster.EndpointsPath, good).RequireOK()
	}
}

func TestRobotSubscribesToAlertsAndDisabledEndpoints(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for format, shown := range map[string]string{"": "cloudevents", "cloudevents": "cloudevents", "slack": "slack", "dingtalk": "dingtalk", "wecom": "wecom", "feishu": "feishu"} {
		at, _ := cluster.RegisterEndpoint(s, `{"url":"https://a.test/","events":["alert.raised","alert.cleared","webhook.disabled"],"format":"`+format+`"}`)
		require.Equal(t, shown, s.Get(at).Data("format"))
	}
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'webhook.create' and after::text like '%"wecom"%'`))

	shop := s.NewCaller("shop", "submitter")
	cluster.RegisterEndpoint(shop, `{"url":"https://a.test/","events":["webhook.disabled"],"format":"wecom"}`)
	refused := shop.Post(cluster.EndpointsPath, `{"url":"https://a.test/","events":["alert.raised"],"format":"wecom"}`)
	require.Equal(t, 400, refused.Status)
	require.Equal(t, []string{"events[0]"}, refused.Fields())
	require.Contains(t, refused.Text, "only an admin may subscribe to alerts")
}

func TestSecretOfRobotIsStoredAndNeverShown(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const secret = "SECad0robot0of0tests"
	robot := func(format, secret string) string {
		return `{"url":"https://a.test/","events":["alert.raised"],"format":"` + format + `","secret":"` + secret + `"}`
	}
	for format, robotSecret := range map[string]string{"dingtalk": secret, "feishu": secret, "wecom": "", "slack": ""} {
		created := s.Post(cluster.EndpointsPath, robot(format, robotSecret)).RequireOK()
		require.Nil(t, created.Data("secret"))
		at := fmt.Sprintf("%s/%v", cluster.EndpointsPath, created.Data("id"))
		refused := s.Post(at+"/rotate-secret", "")
		require.Equal(t, 409, refused.Status, refused.Text)
		require.Contains(t, refused.Text, "delete this endpoint and register it again with the robot's new secret")
		for _, shown := range []cluster.Reply{created, refused, s.Get(at), s.Get(cluster.EndpointsPath), s.Get(cluster.AdminPath + "actions")} {
			require.NotContains(t, shown.Text, secret)
		}
		require.Equal(t, []any{"webhook.create"}, s.AuditedActions("webhook/"+path.Base(at)))
	}
	require.Equal(t, 2, s.Count(`select count(*) from webhook_endpoints where starts_with(secret, 'enc2.') and format in ('dingtalk', 'feishu')`))
	require.Equal(t, 2, s.Count(`select count(*) from webhook_endpoints where secret is null`))
	requireNoSecretsInAuditLog(s)

	for body, why := range map[string]string{
		robot("slack", secret):                     "must be left out: robots of Slack and WeCom take no signature",
		robot("wecom", secret):                     "must be left out: robots of Slack and WeCom take no signature",
		robot("cloudevents", secret):               "must be left out for cloudevents: the response shows the secret that Sendonce makes",
		`{"url":"https://a.test/","secret":"SEC"}`: "must be left out for cloudevents",
		robot("dingtalk", secret+" "):              "must be what the robot's settings show, at most 200 letters, digits and signs without blanks",
		robot("feishu", strings.Repeat("x", 201)):  "at most 200",
		robot("feishu", "密钥"):                      "without blanks",
		robot("teams", secret):                     "must be one of cloudevents",
	} {
		refused := s.Post(cluster.EndpointsPath, body)
		require.Equal(t, 400, refused.Status, body)
		require.Contains(t, refused.Text, why)
		require.NotContains(t, refused.Text, secret)
	}
	require.Equal(t, []string{"secret"}, s.Post(cluster.EndpointsPath, robot("wecom", secret)).Fields())
}

func TestDeliveryToRobotHasItsText(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, `{"url":"https://a.test/","events":["alert.raised"],"format":"feishu"}`)
	sent := s.Post(at+"/test", "")
	require.Contains(t, sent.Data("text"), "[Sendonce] Test: this robot is set up to receive alerts.\n")
	delivery := fmt.Sprintf("%s/%v", cluster.DeliveriesPath, sent.Data("id"))
	require.Equal(t, sent.Data("text"), s.Get(delivery).Data("text"))
	require.Equal(t, sent.Data("text"), s.Post(delivery+"/resend", "").Data("text"))
	require.NotContains(t, s.Get(cluster.DeliveriesPath).Text, `"text"`, "a list has neither texts nor events")

	s.Exec(`update webhook_events set payload = '{"type":"sendonce.task.failed.v1"}'`)
	require.Nil(t, s.Get(delivery).Data("text"), "this event is not sent to robots")
	plain, _ := cluster.RegisterEndpoint(s, shopURL)
	require.Nil(t, s.Post(plain+"/test", "").Data("text"))
}

func TestEndpointsArePaged(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Get(cluster.SigningSecretPath).RequireOK()
	for range 5 {
		cluster.RegisterEndpoint(s, shopURL)
	}
	all := s.Get(cluster.EndpointsPath).Values("id")
	require.Len(t, all, 5, "the signing secret is not listed as an endpoint")
	require.Equal(t, all, s.Pages(cluster.EndpointsPath+"?", "id"))
}

func TestDeliveryFiltersAndDetails(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, shopURL)
	other, _ := cluster.RegisterEndpoint(s, shopURL)
	tasks := []string{task.NewID().String(), task.NewID().String()}
	first, second := cluster.InsertDelivery(s, path.Base(at), tasks[0]), cluster.InsertDelivery(s, path.Base(at), tasks[1])
	third := cluster.InsertDelivery(s, path.Base(other), tasks[1])
	cluster.InsertAttempts(s, first)
	for query, want := range map[string][]any{
		"": {third, second, first}, "?state=delivered": {first}, "?state=pending": {third, second}, "?state=failed": nil, // newest first
		"?task_id=" + strings.ToUpper(tasks[1]): {third, second}, "?endpoint_id=" + path.Base(other) + "&task_id=" + tasks[1]: {third}, "?after=" + second: {first},
	} {
		page := s.Get(cluster.DeliveriesPath + query)
		require.Equal(t, want, page.Values("id"), query)
		require.NotContains(t, page.Text, `"payload"`)
	}
	require.Equal(t, []any{third, second, first}, s.Pages(cluster.DeliveriesPath+"?", "id"))

	got := s.Get(cluster.DeliveriesPath + "/" + first)
	require.Equal(t, tasks[0]+"-7", got.Data("event_id"))
	require.Equal(t, tasks[0], got.Data("subject"))
	require.Equal(t, "sendonce.task.succeeded.v1", got.Data("event_type"))
	require.Equal(t, "https://shop.test/events", got.Data("url"))
	require.EqualValues(t, 2, got.Data("attempts"), "one failed try and one successful try")
	require.Nil(t, got.Data("next_at"))
	require.NotEmpty(t, got.Data("finished_at"))
	tries := got.Data("tries").([]any)
	require.Len(t, tries, 2)
	timedOut, ok := tries[0].(map[string]any), tries[1].(map[string]any)
	require.EqualValues(t, 10000, timedOut["duration_ms"])
	require.Equal(t, "timed out after 10s", timedOut["error"])
	require.NotContains(t, timedOut, "status")
	require.EqualValues(t, 204, ok["status"])
	require.Equal(t, "ok", ok["response"])
	payload := got.Data("payload").(map[string]any)
	require.Equal(t, tasks[0]+"-7", payload["id"])
	require.Equal(t, tasks[0], payload["data"].(map[string]any)["task_id"])
}

func TestDeliveryIsResentInAnyState(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, shopURL)
	id := cluster.InsertDelivery(s, path.Base(at), task.NewID())
	before := s.Get(cluster.DeliveriesPath + "/" + id)
	cluster.InsertAttempts(s, id)
	again := s.Post(cluster.DeliveriesPath+"/"+id+"/resend", "").RequireOK()
	require.Equal(t, "pending", again.Data("state"))
	require.EqualValues(t, 2, again.Data("attempts"), "the earlier tries are still counted")
	require.Nil(t, again.Data("finished_at"))
	require.Equal(t, before.Data("event_id"), again.Data("event_id"), "the receiver can recognise the repeat")
	require.Len(t, again.Data("tries"), 2, "the earlier tries are still listed")
	require.Equal(t, 1, s.Count(`select count(*) from webhook_deliveries where next_at <= now()`), "due at once")
	require.Equal(t, 200, s.Post(cluster.DeliveriesPath+"/"+id+"/resend", "").Status, "a pending delivery can be resent too")

	requireRefused := func() {
		t.Helper()
		got := s.Post(cluster.DeliveriesPath+"/"+id+"/resend", "")
		require.Equal(t, 409, got.Status, got.Text)
		require.Equal(t, "conflict", got.Body["error"])
	}
	s.Post(at+"/disable", "").RequireOK()
	requireRefused()
	s.Post(at+"/enable", "").RequireOK()
	s.Post(cluster.DeliveriesPath+"/"+id+"/resend", "").RequireOK()
	require.Equal(t, 204, s.Do("DELETE", at, "").Status)
	requireRefused()
	require.Equal(t, []any{"webhook.resend", "webhook.resend", "webhook.resend"}, s.AuditedActions("delivery/"+id))
	requireNoSecretsInAuditLog(s)

	s.Get(cluster.SigningSecretPath).RequireOK()
	callback := cluster.InsertDelivery(s, s.QueryText(`select id::text from webhook_endpoints where url is null`), task.NewID())
	require.Equal(t, "https://shop.test/callback", s.Post(cluster.DeliveriesPath+"/"+callback+"/resend", "").Data("url"))
}

func TestEnableResendAndTestEventWakeDeliver(t *testing.T) {
	t.Parallel()
	s, broker := cluster.OwnServer.ServeWithNATS(t)
	wakeUps, err := broker.SubscribeSync(bus.WakeDeliver)
	require.NoError(t, err)
	require.NoError(t, broker.Flush())

	at, _ := cluster.RegisterEndpoint(s, shopURL)
	id := cluster.InsertDelivery(s, path.Base(at), task.NewID())
	s.Post(at+"/disable", "").RequireOK()
	for _, path := range []string{at + "/enable", cluster.DeliveriesPath + "/" + id + "/resend", at + "/test"} {
		s.Post(path, "").RequireOK()
		_, err := wakeUps.NextMsg(10 * time.Second)
		require.NoError(t, err, path)
	}
}

func TestTestEventCreatesADeliveryAndIsLimited(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	at, _ := cluster.RegisterEndpoint(shop, `{"url":"https://shop.test/events","events":["task.failed"]}`)
	require.Equal(t, 404, bank.Post(at+"/test", "").Status)
	sent := shop.Post(at+"/test", "").RequireOK()
	require.Equal(t, "pending", sent.Data("state"))
	require.Equal(t, "sendonce.test.v1", sent.Data("event_type"))
	payload := sent.Data("payload").(map[string]any)
	require.Equal(t, sent.Data("event_id"), payload["id"])
	require.Equal(t, "sendonce.test.v1", payload["type"])
	require.Equal(t, path.Base(at), payload["data"].(map[string]any)["endpoint_id"])
	require.Equal(t, []any{"webhook.test", "webhook.create"}, s.AuditedActions("webhook/"+path.Base(at)))

	for range 9 {
		shop.Post(at+"/test", "").RequireOK()
	}
	refused := shop.Post(at+"/test", "")
	require.Equal(t, 429, refused.Status)
	require.Equal(t, "quota_exceeded", refused.Body["error"])
	other, _ := cluster.RegisterEndpoint(shop, shopURL)
	require.Equal(t, 200, shop.Post(other+"/test", "").Status, "each endpoint has its own limit")
	shop.Post(other+"/disable", "").RequireOK()
	require.Equal(t, 409, shop.Post(other+"/test", "").Status)
}

func TestFailedDeliveriesAreResentInBatches(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	at, _ := cluster.RegisterEndpoint(shop, shopURL)
	disabled, _ := cluster.RegisterEndpoint(shop, shopURL)
	others, _ := cluster.RegisterEndpoint(bank, shopURL)
	fail := func(endpoint, ago string) string {
		id := cluster.InsertDelivery(s, path.Base(endpoint), task.NewID())
		s.Exec(`update webhook_deliveries set state = 2, attempts = 9, claims = 9, next_at = null, finished_at = now() - $2::interval where id = $1`, id, ago)
		return id
	}
	old, later, earlier := fail(at, "3 hours"), fail(at, "1 minute"), fail(at, "2 minutes") // not in the order of their ids
	fail(disabled, "1 minute")
	theirs := fail(others, "1 minute")
	delivered := cluster.InsertDelivery(s, path.Base(at), task.NewID())
	cluster.InsertAttempts(s, delivered)
	shop.Post(disabled+"/disable", "").RequireOK()
	state := func(id string) any { return s.Get(cluster.DeliveriesPath + "/" + id).Data("state") }
	resend := func(c *cluster.Client, otherFields string) cluster.Reply {
		t.Helper()
		return c.Post(cluster.DeliveriesPath+"/resend", fmt.Sprintf(`{"since":%q,"reason":"back"%s}`, time.Now().Add(-time.Hour).Format(time.RFC3339), otherFields)).RequireOK()
	}
	got := resend(shop, `,"limit":1`)
	require.EqualValues(t, 1, got.Data("resent"))
	require.Equal(t, true, got.Data("more"))
	require.Equal(t, "pending", state(earlier), "the delivery that failed earlier is resent first")
	require.Equal(t, "failed", state(later))
	require.EqualValues(t, 0, resend(shop, `,"endpoint_id":"`+path.Base(others)+`"`).Data("resent"), "not those of another caller")
	got = resend(shop, "")
	require.EqualValues(t, 1, got.Data("resent"))
	require.Equal(t, false, got.Data("more"))
	require.EqualValues(t, 0, resend(shop, "").Data("resent"), "nothing is left")
	for _, id := range []string{earlier, later} {
		require.Equal(t, "pending", state(id))
		require.Equal(t, []any{"webhook.resend"}, s.AuditedActions("delivery/"+id))
	}
	require.Equal(t, "failed", state(old), "it failed before since")
	require.Equal(t, "failed", state(theirs))
	require.Equal(t, "delivered", state(delivered))
	require.EqualValues(t, 1, resend(s, "").Data("resent"), "an admin resends those of all callers")
	require.Equal(t, "pending", state(theirs))
	require.Equal(t, 403, s.NewCaller("viewer", "viewer").Post(cluster.DeliveriesPath+"/resend", `{"since":"2023-12-01T08:00:00Z"}`).Status)
}

func TestViewerReadsWebhooksOfAllCallers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, viewer, limited := s.NewCaller("shop", "submitter"), s.NewCaller("viewer", "viewer"), s.NewCaller("limited", "viewer")
	s.Exec(`update callers set queues = '{promo}' where name = 'limited'`)
	at, _ := cluster.RegisterEndpoint(shop, shopURL)
	delivery := cluster.DeliveriesPath + "/" + cluster.InsertDelivery(s, path.Base(at), task.NewID())
	for _, path := range []string{cluster.EndpointsPath, cluster.DeliveriesPath} {
		require.Len(t, viewer.Get(path).Data("items"), 1)
		require.Empty(t, limited.Get(path).Data("items"), "endpoints belong to no queue")
	}
	for _, path := range []string{at, delivery} {
		viewer.Get(path).RequireOK()
		require.Equal(t, 404, limited.Get(path).Status)
	}
	for _, path := range []string{at + "/disable", at + "/enable", at + "/rotate-secret", at + "/test", delivery + "/resend"} {
		require.Equal(t, 403, viewer.Post(path, "").Status, path)
	}
	require.Equal(t, 403, viewer.Do("DELETE", at, "").Status)
	require.Equal(t, 403, viewer.Get(cluster.SigningSecretPath).Status)
}

func TestDeliveriesAreFilteredByTime(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	at, _ := cluster.RegisterEndpoint(s, shopURL)
	cluster.InsertDelivery(s, path.Base(at), task.NewID())
	s.Exec(`update webhook_deliveries set id = $1`, task.IDFloor(time.Date(2024, 1, 2, 0, 0, 0, 0, time.UTC)))
	for query, n := range map[string]int{"from=2024-01-02T00:00:00Z": 1, "from=2024-01-03T00:00:00Z": 0, "to=2024-01-02T00:00:00Z": 0, "from=2024-01-01T00:00:00Z&to=2024-01-03T00:00:00Z": 1} {
		require.Len(t, s.Get(cluster.DeliveriesPath+"?"+query).Data("items"), n, query)
	}
	require.Equal(t, []string{"to"}, s.Get(cluster.DeliveriesPath+"?from=2024-01-03T00:00:00Z&to=2024-01-01T00:00:00Z").Fields())
}
