package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/task"
)

// addEndpoint makes an endpoint and gives its path and its secret.
func addEndpoint(s *server, body string) (at, secret string) {
	made := s.post(endpoints, body)
	require.Equal(s.t, 200, made.status, made.text)
	return fmt.Sprintf("%s/%v", endpoints, made.data("id")), made.data("secret").(string)
}

// auditedActions are the words of what was done by hand to a subject, oldest first.
func auditedActions(s *server, subject string) (words []string) {
	rows, err := s.owner.Query(s.t.Context(), `select action from operator_actions where subject = $1 order by id`, subject)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var word string
		require.NoError(s.t, rows.Scan(&word))
		words = append(words, word)
	}
	require.NoError(s.t, rows.Err())
	return words
}

func (s *server) text(sql string, args ...any) (text string) {
	require.NoError(s.t, s.owner.QueryRow(s.t.Context(), sql, args...).Scan(&text))
	return text
}

// requireNoSecretsStored demands that the records of what was done by hand hold none.
func requireNoSecretsStored(s *server) {
	s.t.Helper()
	require.Positive(s.t, s.count(`select count(*) from operator_actions`))
	require.Zero(s.t, s.count(`select count(*) from operator_actions a where a::text like '%whsec_%' or a::text like '%enc_.%'`))
}

const shopURL = `{"url":"https://shop.test/events"}`

func TestAnEndpointIsRegisteredAndItsSecretShownOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop := s.caller("shop", "submitter")
	made := shop.post(endpoints, `{"url":"https://shop.test:8443/events?x=1","description":"订单","events":["task.failed","webhook.disabled"]}`)
	require.Equal(t, 200, made.status, made.text)
	secret, ok := strings.CutPrefix(made.data("secret").(string), "whsec_")
	require.True(t, ok)
	key, err := base64.StdEncoding.DecodeString(secret)
	require.NoError(t, err)
	require.Len(t, key, 32)
	require.Equal(t, "https://shop.test:8443/events?x=1", made.data("url"))
	require.Equal(t, "订单", made.data("description"))
	require.Equal(t, []any{"task.failed", "webhook.disabled"}, made.data("events"))
	require.Equal(t, true, made.data("enabled"))

	got := shop.get(fmt.Sprintf("%s/%v", endpoints, made.data("id")))
	require.Equal(t, 200, got.status)
	require.Equal(t, made.data("created_at"), got.data("created_at"))
	for _, shown := range []reply{got, shop.get(endpoints), s.get(root + "actions")} {
		require.NotContains(t, shown.text, secret)
	}
	require.Contains(t, shop.post(endpoints, shopURL).text, `"events":[]`, "all")
	require.Equal(t, []string{"webhook.create"}, auditedActions(s, fmt.Sprintf("webhook/%v", made.data("id"))))
	requireNoSecretsStored(s)
}

func TestAnEndpointIsDisabledEnabledAndDeletedWithARecordOfEach(t *testing.T) {
	t.Parallel()
	s := serve(t)
	at, _ := addEndpoint(s, shopURL)
	id := at[len(endpoints)+1:]
	delivered, pending := insertDelivery(s, id, task.NewID()), insertDelivery(s, id, task.NewID())
	insertAttempt(s, delivered)
	for range 2 {
		off := s.post(at+"/disable", "")
		require.Equal(t, 200, off.status, off.text)
		require.Equal(t, false, off.data("enabled"))
		require.Equal(t, "by_hand", off.data("disabled_reason"))
		require.NotEmpty(t, off.data("disabled_at"))
		require.Equal(t, "pending", s.get(deliveries+"/"+pending).data("state"), "it rests")
	}
	for range 2 {
		on := s.post(at+"/enable", "")
		require.Equal(t, 200, on.status, on.text)
		require.Equal(t, true, on.data("enabled"))
		require.Nil(t, on.data("disabled_reason"))
	}
	gone := s.do("DELETE", at, "")
	require.Equal(t, 204, gone.status)
	require.Empty(t, gone.text)
	require.Equal(t, 404, s.get(at).status)
	require.Equal(t, 404, s.do("DELETE", at, "").status)
	require.Equal(t, "failed", s.get(deliveries+"/"+pending).data("state"))
	require.Equal(t, "delivered", s.get(deliveries+"/"+delivered).data("state"))
	require.Equal(t, []string{"webhook.create", "webhook.disable", "webhook.enable", "webhook.delete"}, auditedActions(s, "webhook/"+id), "what changes nothing is not told")
	requireNoSecretsStored(s)
}

func TestARotationKeepsTheOldSecretForADay(t *testing.T) {
	t.Parallel()
	s := serve(t)
	at, first := addEndpoint(s, shopURL)
	require.Nil(t, s.get(at).data("old_secret_until"))
	rotated := s.post(at+"/rotate-secret", "")
	require.Equal(t, 200, rotated.status, rotated.text)
	second := rotated.data("secret").(string)
	require.NotEqual(t, first, second)
	require.NotEmpty(t, rotated.data("rotated_at"))
	until, err := time.Parse(time.RFC3339Nano, rotated.data("old_secret_until").(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), until, time.Minute)
	require.Equal(t, rotated.data("old_secret_until"), s.get(at).data("old_secret_until"))
	require.Zero(t, s.count(`select count(*) from webhook_endpoints where secret in ($1, $2) or old_secret in ($1, $2)`, second, first), "they are encrypted")

	s.exec(`update webhook_endpoints set old_secret_until = now()`)
	require.Nil(t, s.get(at).data("old_secret_until"), "the day is over")
	require.Equal(t, []string{"webhook.create", "webhook.rotate"}, auditedActions(s, "webhook/"+at[len(endpoints)+1:]))
	requireNoSecretsStored(s)
}

func TestASigningSecretIsMadeOnFirstAskAndIsItsCallersAlone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, bank := s.caller("shop", "submitter"), s.caller("bank", "submitter")
	first := shop.get(secret)
	require.Equal(t, 200, first.status, first.text)
	require.Regexp(t, `^whsec_[A-Za-z0-9+/]{43}=$`, first.data("secret"))
	require.Equal(t, first.text, shop.get(secret).text)
	require.NotEqual(t, first.data("secret"), bank.get(secret).data("secret"))
	require.NotEqual(t, first.data("secret"), s.get(secret).data("secret"))

	rotated := shop.post(secret+"/rotate", "")
	require.Equal(t, 200, rotated.status, rotated.text)
	require.NotEqual(t, first.data("secret"), rotated.data("secret"))
	require.NotEmpty(t, rotated.data("old_secret_until"))
	require.Equal(t, rotated.text, shop.get(secret).text)
	require.Equal(t, 1, s.count(`select count(*) from webhook_endpoints where url is null and old_secret is not null`))
	require.Equal(t, 1, s.count(`select count(*) from operator_actions where action = 'webhook.rotate' and caller_name = 'shop'`))
	requireNoSecretsStored(s)

	require.Empty(t, s.get(endpoints).data("items"), "it is no endpoint")
	id := s.text(`select id::text from webhook_endpoints where url is null and old_secret is not null`)
	for _, deed := range []string{"/disable", "/enable", "/rotate-secret"} {
		require.Equal(t, 404, s.post(endpoints+"/"+id+deed, "").status)
	}
	require.Equal(t, 404, s.do("DELETE", endpoints+"/"+id, "").status)
	require.Equal(t, 404, s.get(endpoints+"/"+id).status)
}

func TestWhatIsAnothersDoesNotExistExceptForAnAdmin(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, bank, points := s.caller("shop", "submitter"), s.caller("bank", "submitter"), s.caller("points", "receiver")
	at, _ := addEndpoint(shop, shopURL)
	delivery := deliveries + "/" + insertDelivery(s, at[len(endpoints)+1:], task.NewID())
	of := s.get(at).data("caller_id")
	for _, call := range [][2]string{
		{"GET", at}, {"POST", at + "/disable"}, {"POST", at + "/enable"}, {"POST", at + "/rotate-secret"}, {"GET", delivery}, {"POST", delivery + "/resend"}, {"DELETE", at},
	} {
		require.Equal(t, 403, points.do(call[0], call[1], "").status, call)
		refused := bank.do(call[0], call[1], "")
		require.Equal(t, 404, refused.status, call)
		require.Equal(t, "not_found", refused.body["error"])
	}
	require.Equal(t, true, shop.get(at).data("enabled"))
	for _, path := range []string{endpoints, deliveries} {
		require.Equal(t, 403, points.get(path).status)
		require.Empty(t, bank.get(path).data("items"))
		require.Equal(t, 403, bank.get(fmt.Sprintf("%s?caller_id=%v", path, of)).status)
		require.Len(t, shop.get(fmt.Sprintf("%s?caller_id=%v", path, of)).data("items"), 1)
		require.Len(t, s.get(path).data("items"), 1, "an admin sees everybody's")
		require.Len(t, s.get(fmt.Sprintf("%s?caller_id=%v", path, of)).data("items"), 1)
		require.Empty(t, s.get(path+"?caller_id=0").data("items"))
	}
	require.Equal(t, 403, points.post(endpoints, shopURL).status)
	require.Equal(t, 403, points.get(secret).status)
	require.Equal(t, 403, points.post(secret+"/rotate", "").status)
	for _, call := range [][2]string{{"POST", at + "/disable"}, {"POST", at + "/enable"}, {"POST", at + "/rotate-secret"}, {"POST", delivery + "/resend"}} {
		require.Equal(t, 200, s.do(call[0], call[1], "").status, call)
	}
	require.Equal(t, 1, s.count(`select count(*) from operator_actions where action = 'webhook.resend' and caller_name = 'admin'`))
	require.Equal(t, 204, s.do("DELETE", at, "").status)
}

func TestAnEndpointOfARevokedCallerIsNotEnabled(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, bank := s.caller("shop", "submitter"), s.caller("bank", "submitter")
	at, _ := addEndpoint(shop, shopURL)
	neighbour, _ := addEndpoint(bank, shopURL)
	require.Equal(t, 200, shop.get(secret).status)
	owner := s.get(at).data("caller_id")
	callbacks := s.text(`select id::text from webhook_endpoints where url is null and caller_id = $1::text::bigint`, owner)
	callback := deliveries + "/" + insertDelivery(s, callbacks, task.NewID())
	require.Equal(t, 200, s.post(callback+"/resend", "").status)
	require.Equal(t, 200, s.post(neighbour+"/disable", "").status)
	require.Equal(t, 200, s.post(fmt.Sprintf("%scallers/%v/revoke", root, owner), "").status)
	for _, path := range []string{at + "/enable", callback + "/resend"} {
		refused := s.post(path, "")
		require.Equal(t, 409, refused.status, path)
		require.Equal(t, "conflict", refused.body["error"])
		require.Contains(t, refused.text, "its caller is revoked")
	}
	require.Equal(t, false, s.get(at).data("enabled"))
	require.Equal(t, []string{"webhook.create"}, auditedActions(s, "webhook/"+at[len(endpoints)+1:]))
	require.Equal(t, 204, s.do("DELETE", at, "").status)
	require.Equal(t, 200, s.post(neighbour+"/enable", "").status)
}

func TestWhatIsNoEndpointAndNoListIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for body, fields := range map[string][]string{
		`{}`: {"url"},
		`{"url":"ftp://a.test","description":"` + strings.Repeat("字", 201) + `","events":["task.lost","task.failed","task.failed",""],"secret":"x"}`: {"url", "description", "events[0]", "events[2]", "events[3]", "secret"},
		`{"url":"https://"}`:                                         {"url"},
		`{"url":"//a.test"}`:                                         {"url"},
		`{"url":"https://:443/"}`:                                    {"url"},
		`{"url":"https://user@a.test/"}`:                             {"url"},
		`{"url":"https://user:pass@a.test/"}`:                        {"url"},
		`{"url":"https://a.test/#top"}`:                              {"url"},
		`{"url":"user:bob"}`:                                         {"url"},
		`{"url":"orders.paid"}`:                                      {"url"},
		`{"url":"https://a.test/\n"}`:                                {"url"},
		`{"url":"javascript://a.test/%0aalert(1)"}`:                  {"url"},
		`{"url":"https://a.test/` + strings.Repeat("x", 2000) + `"}`: {"url"},
		`{"url":"https://a.test/\u0000"}`:                            {"url"},
		`{"url":["https://a.test/"],"events":"task.failed","description":"\ud800"}`: {"url", "events", "description"},
		`{"url":"https://a.test/","events":["disabled","webhook.enabled","task."]}`: {"events[0]", "events[1]", "events[2]"},
	} {
		got := s.post(endpoints, body)
		require.Equal(t, 400, got.status, body)
		require.ElementsMatch(t, fields, got.fields(), "%s\n%s", body[:min(len(body), 100)], got.text)
	}
	for query, fields := range map[string][]string{
		endpoints + "?limit=0&after=7&caller_id=-1&state=pending":                           {"limit", "after", "caller_id", "state"},
		deliveries + "?limit=201&after=7&caller_id=-1&state=lost&endpoint_id=1&task_id=%00": {"limit", "after", "caller_id", "state", "endpoint_id", "task_id"},
	} {
		got := s.get(query)
		require.Equal(t, 400, got.status)
		require.ElementsMatch(t, fields, got.fields(), got.text)
	}
	for _, id := range []string{"1", "x", "%00", "00000000-0000-0000-0000-000000000000", "%27%20or%201=1"} {
		for _, path := range []string{endpoints + "/" + id, deliveries + "/" + id} {
			require.Equal(t, 404, s.get(path).status, path)
		}
		require.Equal(t, 404, s.post(deliveries+"/"+id+"/resend", "").status)
		require.Equal(t, 404, s.post(endpoints+"/"+id+"/rotate-secret", "").status)
	}
	require.Equal(t, 400, s.post(endpoints+"/x/disable", `{"reason":"x"}`).status)
	require.Zero(t, s.count(`select count(*) from webhook_endpoints`))
	for _, good := range []string{`{"url":"http://a.test"}`, `{"url":"https://[2606:4700::1111]:8443/?a=b","description":"` + strings.Repeat("字", 200) + `"}`,
		`{"url":"https://例子.test/","events":["task.scheduled","task.pending","task.processing","task.held","task.succeeded","task.failed","webhook.disabled"]}`} {
		got := s.post(endpoints, good)
		require.Equal(t, 200, got.status, got.text)
	}
}

func TestACallerHasAtMostTwentyEndpoints(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, bank := s.caller("shop", "submitter"), s.caller("bank", "submitter")
	require.Equal(t, 200, shop.get(secret).status)
	seen := map[any]bool{}
	for range 20 {
		addEndpoint(shop, shopURL)
	}
	refused := shop.post(endpoints, shopURL)
	require.Equal(t, 409, refused.status)
	require.Equal(t, "conflict", refused.body["error"])
	addEndpoint(bank, shopURL)
	for path, last := endpoints+"?limit=6", false; !last; {
		page := shop.get(path)
		for _, item := range page.data("items").([]any) {
			seen[item.(map[string]any)["id"]] = true
		}
		last = page.data("next_after") == nil
		path = fmt.Sprintf("%s?limit=6&after=%v", endpoints, page.data("next_after"))
	}
	require.Len(t, seen, 20)
	for id := range seen {
		require.Equal(t, 204, shop.do("DELETE", fmt.Sprintf("%s/%v", endpoints, id), "").status)
		break
	}
	addEndpoint(shop, shopURL)
}

func TestDeliveriesAreListedWithTheirTriesAndReadWithTheirPayload(t *testing.T) {
	t.Parallel()
	s := serve(t)
	at, _ := addEndpoint(s, shopURL)
	other, _ := addEndpoint(s, shopURL)
	tasks := []string{task.NewID().String(), task.NewID().String()}
	first, second := insertDelivery(s, at[len(endpoints)+1:], tasks[0]), insertDelivery(s, at[len(endpoints)+1:], tasks[1])
	third := insertDelivery(s, other[len(endpoints)+1:], tasks[1])
	insertAttempt(s, first)
	list := func(query string) (ids []string) {
		page := s.get(deliveries + query)
		require.Equal(t, 200, page.status, page.text)
		for _, item := range page.data("items").([]any) {
			ids = append(ids, item.(map[string]any)["id"].(string))
			require.Nil(t, item.(map[string]any)["payload"])
		}
		return ids
	}
	require.Equal(t, []string{third, second, first}, list(""), "newest first")
	require.Equal(t, []string{first}, list("?state=delivered"))
	require.Equal(t, []string{third, second}, list("?state=pending"))
	require.Empty(t, list("?state=failed"))
	require.Equal(t, []string{third, second}, list("?task_id="+strings.ToUpper(tasks[1])))
	require.Equal(t, []string{third}, list("?endpoint_id="+other[len(endpoints)+1:]+"&task_id="+tasks[1]))
	require.Equal(t, second, s.get(deliveries+"?limit=1&after="+third).data("next_after"))
	require.Equal(t, []string{first}, list("?after="+second))

	got := s.get(deliveries + "/" + first)
	require.Equal(t, tasks[0]+"-7", got.data("event_id"))
	require.Equal(t, tasks[0], got.data("subject"))
	require.Equal(t, "sendonce.task.succeeded.v1", got.data("event_type"))
	require.Equal(t, "https://shop.test/events", got.data("url"))
	require.EqualValues(t, 2, got.data("attempts"), "one failed, one delivered")
	require.Nil(t, got.data("next_at"))
	require.NotEmpty(t, got.data("finished_at"))
	tries := got.data("tries").([]any)
	require.Len(t, tries, 2)
	timedOut, ok := tries[0].(map[string]any), tries[1].(map[string]any)
	require.EqualValues(t, 10000, timedOut["duration_ms"])
	require.Equal(t, "timed out after 10s", timedOut["error"])
	require.NotContains(t, timedOut, "status")
	require.EqualValues(t, 204, ok["status"])
	require.Equal(t, "ok", ok["response"])
	payload := got.data("payload").(map[string]any)
	require.Equal(t, tasks[0]+"-7", payload["id"])
	require.Equal(t, tasks[0], payload["data"].(map[string]any)["task_id"])
}

func TestADeliveryIsResentWhateverBecameOfItWhileItsEndpointIsThere(t *testing.T) {
	t.Parallel()
	s := serve(t)
	at, _ := addEndpoint(s, shopURL)
	id := insertDelivery(s, at[len(endpoints)+1:], task.NewID())
	before := s.get(deliveries + "/" + id)
	insertAttempt(s, id)
	again := s.post(deliveries+"/"+id+"/resend", "")
	require.Equal(t, 200, again.status, again.text)
	require.Equal(t, "pending", again.data("state"))
	require.EqualValues(t, 2, again.data("attempts"), "tries made stay counted")
	require.Nil(t, again.data("finished_at"))
	require.Equal(t, before.data("event_id"), again.data("event_id"), "the receiver recognises it")
	require.Len(t, again.data("tries"), 2, "its history stays")
	require.Equal(t, 1, s.count(`select count(*) from webhook_deliveries where next_at <= now()`), "due at once")
	require.Equal(t, 200, s.post(deliveries+"/"+id+"/resend", "").status, "a pending one too")

	refused := func() {
		t.Helper()
		got := s.post(deliveries+"/"+id+"/resend", "")
		require.Equal(t, 409, got.status, got.text)
		require.Equal(t, "conflict", got.body["error"])
	}
	require.Equal(t, 200, s.post(at+"/disable", "").status)
	refused()
	require.Equal(t, 200, s.post(at+"/enable", "").status)
	require.Equal(t, 200, s.post(deliveries+"/"+id+"/resend", "").status)
	require.Equal(t, 204, s.do("DELETE", at, "").status)
	refused()
	require.Equal(t, []string{"webhook.resend", "webhook.resend", "webhook.resend"}, auditedActions(s, "delivery/"+id))
	requireNoSecretsStored(s)

	require.Equal(t, 200, s.get(secret).status)
	callback := insertDelivery(s, s.text(`select id::text from webhook_endpoints where url is null`), task.NewID())
	require.Equal(t, "https://shop.test/callback", s.post(deliveries+"/"+callback+"/resend", "").data("url"))
}

func TestWhatIsDueAgainWakesDeliver(t *testing.T) {
	t.Parallel()
	s, broker := ownServer.serveWithNATS(t)
	woken, err := broker.SubscribeSync(bus.WakeDeliver)
	require.NoError(t, err)
	require.NoError(t, broker.Flush())

	at, _ := addEndpoint(s, shopURL)
	id := insertDelivery(s, at[len(endpoints)+1:], task.NewID())
	require.Equal(t, 200, s.post(at+"/disable", "").status)
	for _, path := range []string{at + "/enable", deliveries + "/" + id + "/resend"} {
		require.Equal(t, 200, s.post(path, "").status)
		_, err := woken.NextMsg(10 * time.Second)
		require.NoError(t, err, path)
	}
}
