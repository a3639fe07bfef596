package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

const (
	adminRoot = "/api/v1/admin/"
	onlyAdmin = `"roles":["admin"],"queues":["bulk"]`
)

// submitTo submits a task to a queue and gives its id.
func submitTo(s *server, queue string) string {
	s.t.Helper()
	r := s.post(sms+"send", fmt.Sprintf(`{"phone_number":"13800138000","content":"hello","queue":%q}`, queue))
	require.Equal(s.t, 200, r.status, r.text)
	return r.data("task_id").(string)
}

// Every operation of the contract as an admin with queues: what does not say that it
// holds the caller to its queues is refused before anything happens.
func TestQueueAdminIsRefusedByDefault(t *testing.T) {
	t.Parallel()
	s := serve(t)
	newCaller(s, "first", onlyAdmin) // the examples revoke it
	limited := newCaller(s, "limited", onlyAdmin)
	c := readContract(t)
	for pattern, operation := range c.operations {
		roles, _ := operation.node["x-roles"].([]any)
		if roles == nil {
			continue // the probes of the platform
		}
		req := c.exampleCall(t, s.url, pattern)
		req.SetBasicAuth(limited.user, limited.password)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		refused := strings.Contains(string(text), "more than the queues to which this admin is limited: bulk") || strings.Contains(string(text), "this needs the role")
		if operation.node["x-within-queues"] == true {
			require.Contains(t, roles, "admin", pattern)
			require.False(t, refused, "%s: %s", pattern, text)
			continue
		}
		require.Equal(t, 403, res.StatusCode, "%s: %s", pattern, text)
		require.True(t, refused, "%s: %s", pattern, text)
	}
}

func TestQueueAdminActsOnItsQueuesOnly(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hostile, rightful := newCaller(s, "hostile", onlyAdmin), newCaller(s, "rightful", `"roles":["admin"],"queues":["default"]`)
	own, foreign := submitTo(s, "bulk"), submitTo(s, "default")

	for path, body := range map[string]string{"": "", "/retry": "", "/cancel": "", "/resolve": `{"outcome":"failed","reason":"x"}`} {
		method := map[bool]string{true: "GET", false: "POST"}[path == ""]
		theirs, none := hostile.do(method, adminRoot+"tasks/"+foreign+path, body), hostile.do(method, adminRoot+"tasks"+nowhere+path, body)
		require.Equal(t, 404, theirs.status, "%s: %s", path, theirs.text)
		require.Equal(t, none.text, theirs.text, "a foreign task does not exist")
		require.NotEqual(t, 404, hostile.do(method, adminRoot+"tasks/"+own+path, body).status, path)
		require.NotEqual(t, 404, s.do(method, adminRoot+"tasks/"+foreign+path, "").status, path)
		submitTo(s, "default")
		if path == "/cancel" {
			foreign, own = submitTo(s, "default"), submitTo(s, "bulk")
		}
	}
	tasks := func(by *server, query string) (ids []string) {
		for _, item := range by.get(adminRoot + "tasks" + query).data("items").([]any) {
			ids = append(ids, item.(map[string]any)["task_id"].(string))
		}
		return ids
	}
	require.Contains(t, tasks(hostile, ""), own)
	require.NotContains(t, tasks(hostile, ""), foreign)
	require.NotContains(t, tasks(hostile, "?phone_number=13800138000"), foreign)
	require.NotContains(t, tasks(hostile, "?state=pending"), foreign)
	require.Contains(t, tasks(rightful, "?state=pending"), foreign)
	require.Equal(t, 403, hostile.get(adminRoot+"tasks?queue=default").status)

	for _, do := range []string{"pause", "resume"} {
		at := adminRoot + "queues/default/" + do
		require.Equal(t, 403, hostile.post(at, `{"reason":"x"}`).status, do)
		require.Equal(t, 200, rightful.post(at, `{"reason":"x"}`).status, do)
	}
	queues := hostile.get(adminRoot + "queues")
	require.Contains(t, queues.text, `"bulk"`)
	require.NotContains(t, queues.text, `"default"`)
	require.Equal(t, 200, hostile.post(adminRoot+"queues/bulk/pause", `{"reason":"x"}`).status)
	require.Equal(t, 403, hostile.get(adminRoot+"subscribe-templates").status)
	s.exec(`insert into template_pauses (template_id, caller_id, strikes, reason) select 't', id, 1, 'x' from callers where name = 'hostile'`)
	list := newCaller(s, "wechat-admin", `"roles":["admin"],"queues":["wechat"]`).get(adminRoot + "subscribe-templates")
	require.Equal(t, 200, list.status)
	require.NotEmpty(t, list.data("templates"))
	require.NotContains(t, list.text, "hostile", "it does not see other callers")

	s.exec(`insert into alerts (id, kind, queue, value, threshold) values (gen_random_uuid(), 'backlog', 'default', 9, 1), (gen_random_uuid(), 'backlog', 'bulk', 9, 1), (gen_random_uuid(), 'stream_full', 'bulk', 0.9, 0.8)`)
	alerts := hostile.get(adminRoot + "alerts")
	require.Contains(t, alerts.text, `"bulk"`)
	require.NotContains(t, alerts.text, `"default"`)
	require.NotContains(t, alerts.text, `stream_full`, "a stream is no queue, whatever its name")
	require.Contains(t, s.get(adminRoot+"alerts").text, `stream_full`)
}

// An admin with queues that has other roles too acts in these for itself.
func TestQueueAdminIsNoAdminElsewhere(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hostile := newCaller(s, "hostile", `"roles":["admin","submitter","receiver"],"queues":["bulk","wechat"]`)
	shop := newCaller(s, "shop", `"roles":["submitter","receiver"]`)
	foreign := submitTo(shop, "bulk")
	require.Equal(t, 404, hostile.get(sms+"task/"+foreign).status)
	require.Equal(t, 404, hostile.post(sms+"task/"+foreign+"/cancel", "").status)
	require.Equal(t, 200, hostile.get(sms+"task/"+submitTo(hostile, "bulk")).status)

	endpoint := shop.post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook"}`)
	require.Equal(t, 200, endpoint.status, endpoint.text)
	require.Equal(t, 404, hostile.get(fmt.Sprintf("/api/v1/webhooks/endpoints/%v", endpoint.data("id"))).status)
	require.Equal(t, 404, hostile.post(fmt.Sprintf("/api/v1/webhooks/endpoints/%v/rotate-secret", endpoint.data("id")), "").status)
	require.Equal(t, 403, hostile.get("/api/v1/webhooks/endpoints?caller_id=2").status)
	require.Equal(t, 400, hostile.post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook","events":["alert.raised"]}`).status)

	require.Equal(t, 403, hostile.get("/api/v1/stream/shop").status)
	require.Equal(t, 403, hostile.post("/api/v1/messages", `{"client_msg_id":"1","from":"shop","to":"shop","type":"t","data":"x"}`).status)
	require.Equal(t, 403, hostile.get("/api/v1/messages?between=shop,other").status)
	at := orderMessage(shop, booking(1, "")).header.Get("Location")
	require.Equal(t, 404, hostile.get(at).status)
	require.Equal(t, 403, hostile.post(at+"/resend", "").status)
	newWeChatSender(s).send(task.Report{Outcome: task.SentFailed})
	require.Equal(t, 403, hostile.post(subscriptions+"send", booking(1, "")).status, "it replaces nothing of another caller")
	require.Equal(t, true, orderMessage(shop, booking(1, "")).data("again"))
}

func TestQueueAdminMakesNoWiderCaller(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hostile := newCaller(s, "hostile", `"roles":["admin","sender"],"queues":["bulk","slow"],"receives":["orders.new"]`)
	const callers = adminRoot + "callers"
	wide := map[string][]string{
		`"roles":["sender"]`:                                                       {"queues"},
		`"roles":["sender"],"queues":[]`:                                           {"queues"},
		`"roles":["sender"],"queues":["bulk","default"]`:                           {"queues"},
		`"roles":["admin"]`:                                                        {"queues"},
		`"roles":["admin"],"queues":["default"]`:                                   {"queues"},
		`"roles":["submitter"],"queues":["bulk"]`:                                  {"roles"},
		`"roles":["sender","trigger"],"queues":["bulk"]`:                           {"roles"},
		`"roles":["sender"],"queues":["bulk"],"receives":["orders.>"]`:             {"receives"},
		`"roles":["receiver"],"queues":["other"],"receives":["orders.new","x.y"]`:  {"roles", "queues", "receives"},
		`"roles":["admin","sender"],"queues":["bulk","slow"],"receives":["a","b"]`: {"receives"},
	}
	for grants, fields := range wide {
		r := hostile.post(callers, `{"name":"hostile.helper",`+grants+`}`)
		require.Equal(t, 403, r.status, "%s: %s", grants, r.text)
		require.Equal(t, fields, r.fields(), grants)
	}
	require.Equal(t, 0, s.count(`select count(*) from callers where name = 'hostile.helper'`))

	helper := hostile.post(callers, `{"name":"hostile.helper","roles":["admin"],"queues":["bulk"]}`)
	require.Equal(t, 200, helper.status, helper.text)
	at := fmt.Sprintf("%s/%v", callers, helper.data("id"))
	for grants, fields := range wide {
		r := hostile.do("PUT", at, "{"+grants+"}")
		if !strings.Contains(grants, `"queues"`) {
			continue // what is left out stays
		}
		require.Equal(t, 403, r.status, "%s: %s", grants, r.text)
		require.Equal(t, fields, r.fields(), grants)
	}
	require.Equal(t, 200, hostile.do("PUT", at, `{"roles":["sender"]}`).status)
	require.Equal(t, 200, hostile.post(at+"/rotate", "").status)

	var others []string
	for name, grants := range map[string]string{
		"boss": `"roles":["admin"]`, "all-queues": `"roles":["sender"]`, "peer": `"roles":["admin"],"queues":["bulk","default"]`,
		"submitter": `"roles":["submitter"],"queues":["bulk"]`, "receiver": `"roles":["sender"],"queues":["bulk"],"receives":["orders.>"]`,
	} {
		name = "hostile." + name
		made := s.post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, grants))
		require.Equal(t, 200, made.status, made.text)
		others = append(others, name)
		theirs := fmt.Sprintf("%s/%v", callers, made.data("id"))
		for _, r := range []reply{
			hostile.get(theirs), hostile.post(theirs+"/rotate", ""), hostile.post(theirs+"/revoke", ""),
			hostile.do("PUT", theirs, `{"roles":["sender"],"queues":["bulk"],"receives":[]}`),
		} {
			require.Equal(t, 404, r.status, "%s: %s", name, r.text)
		}
		as := *s
		as.user, as.password = name, made.data("token").(string)
		require.NotEqual(t, 401, as.get(callers).status, "it goes on with its token")
	}
	shown := hostile.get(callers).text
	for _, name := range others {
		require.NotContains(t, shown, `"`+name+`"`)
	}
	require.Contains(t, shown, `"hostile.helper"`)

	self := fmt.Sprintf("%s/%d", callers, s.count(`select id from callers where name = 'hostile'`))
	for _, grants := range []string{`{"queues":[]}`, `{"queues":["bulk"]}`, `{"roles":["admin","sender","trigger"]}`} {
		require.Equal(t, 403, hostile.do("PUT", self, grants).status, "its own limits are not its to change: %s", grants)
	}
	require.Equal(t, 200, hostile.post(at+"/revoke", "").status)
}

// A user's inbox, conversations and name belong to the caller of that name, and no
// queue bounds them. So an admin with queues makes and manages no caller but those that are
// named after it.
func TestQueueAdminTakesNoUsersName(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hostile := newCaller(s, "hostile", `"roles":["admin","submitter","receiver"],"queues":["bulk"]`)
	const callers, mine = adminRoot + "callers", `"roles":["submitter","receiver"],"queues":["bulk"]`
	ann := newCaller(s, "ann", `"roles":["submitter","receiver"],"queues":["bulk"]`)
	sendText(ann, "bob", "1")

	withMessages := hostile.post(callers, `{"name":"bob",`+mine+`}`)
	require.Equal(t, 403, withMessages.status, withMessages.text)
	require.Equal(t, []string{"name"}, withMessages.fields())
	for _, name := range []string{"ann", "admin", "nobody", "hostile", "hostile-1", "hostileX.1", "Hostile.1"} {
		r := hostile.post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, mine))
		require.Equal(t, 403, r.status, "%s: %s", name, r.text)
		require.Equal(t, withMessages.body["fields"], r.body["fields"], "a name that is taken, has messages or is free: all alike")
	}
	require.Equal(t, 2, s.count(`select count(*) from callers`))

	at := fmt.Sprintf("%s/%d", callers, s.count(`select id from callers where name = 'ann'`))
	for _, r := range []reply{
		hostile.get(at), hostile.post(at+"/rotate", ""), hostile.post(at+"/revoke", ""), hostile.do("PUT", at, `{"roles":["receiver"]}`),
	} {
		require.Equal(t, 404, r.status, "ann may do no more than hostile, and is not its to be: %s", r.text)
	}
	require.NotContains(t, hostile.get(callers).text, `"ann"`)
	require.Equal(t, 200, ann.get("/api/v1/messages?between=ann,bob").status, "ann goes on with her token")

	helper := newCaller(hostile, "hostile.1", mine)
	require.Equal(t, 403, helper.get("/api/v1/messages?between=ann,bob").status)
	require.Contains(t, hostile.get(callers).text, `"hostile.1"`)
	newCaller(s, "last", `"roles":["sender"]`)
	first := hostile.get(callers + "?limit=1")
	require.Contains(t, first.text, `"hostile"`)
	second := hostile.get(fmt.Sprintf("%s?limit=1&after=%v", callers, first.data("next_after")))
	require.Contains(t, second.text, `"hostile.1"`, "no page is empty, or shows others, because some callers are left out")
	require.Nil(t, second.data("next_after"))
	require.Equal(t, 200, newCaller(s, "bob", `"roles":["receiver"]`).get("/api/v1/messages?between=ann,bob").status, "an admin without queues gives bob his name")
}

// What a process remembers of an admin does not count when it changes callers.
func TestQueueAdminIsLimitedAsItIsNow(t *testing.T) {
	t.Parallel()
	s := serve(t)
	wasBoss := newCaller(s, "was-boss", `"roles":["admin"]`)
	require.Equal(t, 200, wasBoss.get(adminRoot+"callers").status)
	for _, change := range []string{`queues = '{bulk}'`, `queues = '{}', roles = '{sender}'`, `roles = '{admin}', revoked_at = now()`} {
		s.exec(`update callers set ` + change) // by another process: this one remembers the caller as it was
		r := wasBoss.post(adminRoot+"callers", `{"name":"wide","roles":["admin"]}`)
		require.Equal(t, 403, r.status, "%s: %s", change, r.text)
	}
	require.Equal(t, 1, s.count(`select count(*) from callers`))
	require.Equal(t, 200, s.post(adminRoot+"callers", `{"name":"wide","roles":["admin"]}`).status, "the built-in admin has no limits")
}
