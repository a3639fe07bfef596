package admin_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/task"
)

const onlyAdmin = `"roles":["admin"],"queues":["bulk"]`

// An admin with queues calls every operation. Those that the contract does not mark as
// limited to the caller's queues are refused before anything happens.
func TestQueueAdminIsRefusedByDefault(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.NewCallerWith("first", onlyAdmin) // the examples revoke it
	limited := s.NewCallerWith("limited", onlyAdmin)
	c := contract.Read(t)
	for pattern, operation := range c.Operations {
		roles, _ := operation.Node["x-roles"].([]any)
		if roles == nil {
			continue // the probes of the platform
		}
		req := c.ExampleCall(t, s.URL, pattern)
		req.SetBasicAuth(limited.User, limited.Password)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		refused := strings.Contains(string(text), "more than the queues to which this admin is limited: bulk") || strings.Contains(string(text), "this needs the role")
		if operation.Node["x-within-queues"] == true {
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
	s := cluster.Serve(t)
	hostile, rightful := s.NewCallerWith("hostile", onlyAdmin), s.NewCallerWith("rightful", `"roles":["admin"],"queues":["default"]`)
	own, foreign := s.SubmitTo("bulk"), s.SubmitTo("default")

	for path, body := range map[string]string{"": "", "/retry": "", "/cancel": "", "/resolve": `{"outcome":"failed","reason":"x"}`} {
		method := map[bool]string{true: "GET", false: "POST"}[path == ""]
		theirs, none := hostile.Do(method, cluster.AdminPath+"tasks/"+foreign+path, body), hostile.Do(method, cluster.AdminPath+"tasks"+cluster.Nowhere+path, body)
		require.Equal(t, 404, theirs.Status, "%s: %s", path, theirs.Text)
		require.Equal(t, none.Text, theirs.Text, "a foreign task does not exist")
		require.NotEqual(t, 404, hostile.Do(method, cluster.AdminPath+"tasks/"+own+path, body).Status, path)
		require.NotEqual(t, 404, s.Do(method, cluster.AdminPath+"tasks/"+foreign+path, "").Status, path)
		s.SubmitTo("default")
		if path == "/cancel" {
			foreign, own = s.SubmitTo("default"), s.SubmitTo("bulk")
		}
	}
	tasks := func(by *cluster.Client, query string) (ids []string) {
		for _, item := range by.Get(cluster.AdminPath + "tasks" + query).Data("items").([]any) {
			ids = append(ids, item.(map[string]any)["task_id"].(string))
		}
		return ids
	}
	require.Contains(t, tasks(hostile, ""), own)
	require.NotContains(t, tasks(hostile, ""), foreign)
	require.NotContains(t, tasks(hostile, "?phone_number=13800138000"), foreign)
	require.NotContains(t, tasks(hostile, "?state=pending"), foreign)
	require.Contains(t, tasks(rightful, "?state=pending"), foreign)
	require.Equal(t, 403, hostile.Get(cluster.AdminPath+"tasks?queue=default").Status)

	for _, do := range []string{"pause", "resume"} {
		at := cluster.AdminPath + "queues/default/" + do
		require.Equal(t, 403, hostile.Post(at, `{"reason":"x"}`).Status, do)
		require.Equal(t, 200, rightful.Post(at, `{"reason":"x"}`).Status, do)
	}
	queues := hostile.Get(cluster.AdminPath + "queues")
	require.Contains(t, queues.Text, `"bulk"`)
	require.NotContains(t, queues.Text, `"default"`)
	require.Equal(t, 200, hostile.Post(cluster.AdminPath+"queues/bulk/pause", `{"reason":"x"}`).Status)
	require.Equal(t, 403, hostile.Get(cluster.AdminPath+"subscribe-templates").Status)
	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, reason) select 't', id, 1, 'x' from callers where name = 'hostile'`)
	list := s.NewCallerWith("wechat-admin", `"roles":["admin"],"queues":["wechat"]`).Get(cluster.AdminPath + "subscribe-templates")
	require.Equal(t, 200, list.Status)
	require.NotEmpty(t, list.Data("templates"))
	require.NotContains(t, list.Text, "hostile", "it does not see other callers")

	s.Exec(`insert into alerts (id, kind, queue, value, threshold) values (gen_random_uuid(), 'backlog', 'default', 9, 1), (gen_random_uuid(), 'backlog', 'bulk', 9, 1), (gen_random_uuid(), 'stream_full', 'bulk', 0.9, 0.8)`)
	alerts := hostile.Get(cluster.AdminPath + "alerts")
	require.Contains(t, alerts.Text, `"bulk"`)
	require.NotContains(t, alerts.Text, `"default"`)
	require.NotContains(t, alerts.Text, `stream_full`, "a stream is no queue, whatever its name")
	require.Contains(t, s.Get(cluster.AdminPath+"alerts").Text, `stream_full`)
}

// In its other roles, an admin with queues acts for itself only.
func TestQueueAdminIsNoAdminElsewhere(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	hostile := s.NewCallerWith("hostile", `"roles":["admin","submitter","receiver"],"queues":["bulk","wechat"]`)
	shop := s.NewCallerWith("shop", `"roles":["submitter","receiver"]`)
	foreign := shop.SubmitTo("bulk")
	require.Equal(t, 404, hostile.Get(cluster.SMSPath+"task/"+foreign).Status)
	require.Equal(t, 404, hostile.Post(cluster.SMSPath+"task/"+foreign+"/cancel", "").Status)
	require.Equal(t, 200, hostile.Get(cluster.SMSPath+"task/"+hostile.SubmitTo("bulk")).Status)

	endpoint := shop.Post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook"}`)
	require.Equal(t, 200, endpoint.Status, endpoint.Text)
	require.Equal(t, 404, hostile.Get(fmt.Sprintf("/api/v1/webhooks/endpoints/%v", endpoint.Data("id"))).Status)
	require.Equal(t, 404, hostile.Post(fmt.Sprintf("/api/v1/webhooks/endpoints/%v/rotate-secret", endpoint.Data("id")), "").Status)
	require.Equal(t, 403, hostile.Get("/api/v1/webhooks/endpoints?caller_id=2").Status)
	require.Equal(t, 400, hostile.Post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook","events":["alert.raised"]}`).Status)

	require.Equal(t, 403, hostile.Get("/api/v1/stream/shop").Status)
	require.Equal(t, 403, hostile.Post("/api/v1/messages", `{"client_msg_id":"1","from":"shop","to":"shop","type":"t","data":"x"}`).Status)
	require.Equal(t, 403, hostile.Get("/api/v1/messages?between=shop,other").Status)
	at := shop.Subscribe(cluster.Booking(1, "")).Header.Get("Location")
	require.Equal(t, 404, hostile.Get(at).Status)
	require.Equal(t, 403, hostile.Post(at+"/resend", "").Status)
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentFailed})
	require.Equal(t, 403, hostile.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")).Status, "it replaces nothing of another caller")
	require.Equal(t, true, shop.Subscribe(cluster.Booking(1, "")).Data("again"))
}

func TestQueueAdminMakesNoWiderCaller(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	hostile := s.NewCallerWith("hostile", `"roles":["admin","sender"],"queues":["bulk","slow"],"receives":["orders.new"]`)
	const callers = cluster.AdminPath + "callers"
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
		r := hostile.Post(callers, `{"name":"hostile.helper",`+grants+`}`)
		require.Equal(t, 403, r.Status, "%s: %s", grants, r.Text)
		require.Equal(t, fields, r.Fields(), grants)
	}
	require.Equal(t, 0, s.Count(`select count(*) from callers where name = 'hostile.helper'`))

	helper := hostile.Post(callers, `{"name":"hostile.helper","roles":["admin"],"queues":["bulk"]}`)
	require.Equal(t, 200, helper.Status, helper.Text)
	at := fmt.Sprintf("%s/%v", callers, helper.Data("id"))
	for grants, fields := range wide {
		r := hostile.Do("PUT", at, "{"+grants+"}")
		if !strings.Contains(grants, `"queues"`) {
			continue // what is left out stays
		}
		require.Equal(t, 403, r.Status, "%s: %s", grants, r.Text)
		require.Equal(t, fields, r.Fields(), grants)
	}
	require.Equal(t, 200, hostile.Do("PUT", at, `{"roles":["sender"]}`).Status)
	require.Equal(t, 200, hostile.Post(at+"/rotate", "").Status)

	var others []string
	for name, grants := range map[string]string{
		"boss": `"roles":["admin"]`, "all-queues": `"roles":["sender"]`, "peer": `"roles":["admin"],"queues":["bulk","default"]`,
		"submitter": `"roles":["submitter"],"queues":["bulk"]`, "receiver": `"roles":["sender"],"queues":["bulk"],"receives":["orders.>"]`,
	} {
		name = "hostile." + name
		made := s.Post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, grants))
		require.Equal(t, 200, made.Status, made.Text)
		others = append(others, name)
		theirs := fmt.Sprintf("%s/%v", callers, made.Data("id"))
		for _, r := range []cluster.Reply{
			hostile.Get(theirs), hostile.Post(theirs+"/rotate", ""), hostile.Post(theirs+"/revoke", ""),
			hostile.Do("PUT", theirs, `{"roles":["sender"],"queues":["bulk"],"receives":[]}`),
		} {
			require.Equal(t, 404, r.Status, "%s: %s", name, r.Text)
		}
		as := *s
		as.User, as.Password = name, made.Data("token").(string)
		require.NotEqual(t, 401, as.Get(callers).Status, "it goes on with its token")
	}
	shown := hostile.Get(callers).Text
	for _, name := range others {
		require.NotContains(t, shown, `"`+name+`"`)
	}
	require.Contains(t, shown, `"hostile.helper"`)

	self := fmt.Sprintf("%s/%d", callers, s.Count(`select id from callers where name = 'hostile'`))
	for _, grants := range []string{`{"queues":[]}`, `{"queues":["bulk"]}`, `{"roles":["admin","sender","trigger"]}`} {
		require.Equal(t, 403, hostile.Do("PUT", self, grants).Status, "its own limits are not its to change: %s", grants)
	}
	require.Equal(t, 200, hostile.Post(at+"/revoke", "").Status)
}

// A user's inbox and conversations belong to the caller of that name, whatever its queues.
// So an admin with queues manages only callers that are named after it.
func TestQueueAdminCannotUseAUserName(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	hostile := s.NewCallerWith("hostile", `"roles":["admin","submitter","receiver"],"queues":["bulk"]`)
	const callers, mine = cluster.AdminPath + "callers", `"roles":["submitter","receiver"],"queues":["bulk"]`
	ann := s.NewCallerWith("ann", `"roles":["submitter","receiver"],"queues":["bulk"]`)
	ann.SendText("bob", "1")

	withMessages := hostile.Post(callers, `{"name":"bob",`+mine+`}`)
	require.Equal(t, 403, withMessages.Status, withMessages.Text)
	require.Equal(t, []string{"name"}, withMessages.Fields())
	for _, name := range []string{"ann", "admin", "nobody", "hostile", "hostile-1", "hostileX.1", "Hostile.1"} {
		r := hostile.Post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, mine))
		require.Equal(t, 403, r.Status, "%s: %s", name, r.Text)
		require.Equal(t, withMessages.Body["fields"], r.Body["fields"], "a name that is taken, has messages or is free: all alike")
	}
	require.Equal(t, 2, s.Count(`select count(*) from callers`))

	at := fmt.Sprintf("%s/%d", callers, s.Count(`select id from callers where name = 'ann'`))
	for _, r := range []cluster.Reply{
		hostile.Get(at), hostile.Post(at+"/rotate", ""), hostile.Post(at+"/revoke", ""), hostile.Do("PUT", at, `{"roles":["receiver"]}`),
	} {
		require.Equal(t, 404, r.Status, "ann may do no more than hostile, and is not its to be: %s", r.Text)
	}
	require.NotContains(t, hostile.Get(callers).Text, `"ann"`)
	require.Equal(t, 200, ann.Get("/api/v1/messages?between=ann,bob").Status, "ann goes on with her token")

	helper := hostile.NewCallerWith("hostile.1", mine)
	require.Equal(t, 403, helper.Get("/api/v1/messages?between=ann,bob").Status)
	require.Contains(t, hostile.Get(callers).Text, `"hostile.1"`)
	s.NewCallerWith("last", `"roles":["sender"]`)
	first := hostile.Get(callers + "?limit=1")
	require.Contains(t, first.Text, `"hostile"`)
	second := hostile.Get(fmt.Sprintf("%s?limit=1&after=%v", callers, first.Data("next_after")))
	require.Contains(t, second.Text, `"hostile.1"`, "no page is empty, or shows others, because some callers are left out")
	require.Nil(t, second.Data("next_after"))
	require.Equal(t, 200, s.NewCallerWith("bob", `"roles":["receiver"]`).Get("/api/v1/messages?between=ann,bob").Status, "an admin without queues gives bob his name")
}

// The cached limits of an admin do not count when it changes callers.
func TestQueueAdminLimitsFollowChanges(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	wasBoss := s.NewCallerWith("was-boss", `"roles":["admin"]`)
	require.Equal(t, 200, wasBoss.Get(cluster.AdminPath+"callers").Status)
	for _, change := range []string{`queues = '{bulk}'`, `queues = '{}', roles = '{sender}'`, `roles = '{admin}', revoked_at = now()`} {
		s.Exec(`update callers set ` + change) // by another process: this one has the old ones cached
		r := wasBoss.Post(cluster.AdminPath+"callers", `{"name":"wide","roles":["admin"]}`)
		require.Equal(t, 403, r.Status, "%s: %s", change, r.Text)
	}
	require.Equal(t, 1, s.Count(`select count(*) from callers`))
	require.Equal(t, 200, s.Post(cluster.AdminPath+"callers", `{"name":"wide","roles":["admin"]}`).Status, "the built-in admin has no limits")
}

func TestAdminsHaveNoBusinessTypes(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const callers = "/api/v1/admin/callers"
	made := s.Post(callers, `{"name":"boss","roles":["admin"],"business_types":["coupon"]}`)
	require.Equal(t, 400, made.Status, made.Text)
	require.Equal(t, []string{"business_types"}, made.Fields())
	bad := s.Post(callers, `{"name":"shop","roles":["submitter"],"business_types":[""," ","a","a"]}`)
	require.Equal(t, []string{"business_types[0]", "business_types[1]", "business_types[3]"}, bad.Fields())
	shop := s.Post(callers, `{"name":"shop","roles":["submitter"],"business_types":["coupon"]}`)
	at := fmt.Sprintf("%s/%v", callers, shop.Data("id"))
	promoted := s.Do("PUT", at, `{"roles":["admin"]}`)
	require.Equal(t, 400, promoted.Status, promoted.Text)
	require.Equal(t, []string{"business_types"}, promoted.Fields())
	require.Equal(t, []any{"coupon"}, s.Get(at).Data("business_types"), "nothing was changed")
	require.Equal(t, []any{}, s.Do("PUT", at, `{"roles":["admin"],"business_types":[]}`).Data("business_types"))
}

func TestOnlyAdminsListAlerts(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	refused := s.NewCaller("shop", "submitter").Post(cluster.EndpointsPath, `{"url":"https://shop.test/","events":["task.failed","alert.raised"]}`)
	require.Equal(t, 400, refused.Status)
	require.Equal(t, []string{"events[1]"}, refused.Fields())
	require.Contains(t, refused.Text, "only an admin may subscribe to alerts")
	require.Equal(t, 200, s.NewCaller("ops", "admin").Post(cluster.EndpointsPath, `{"url":"https://ops.test/","events":["alert.cleared"]}`).Status)
	require.Equal(t, 403, s.NewCaller("app", "sender").Get("/api/v1/admin/alerts").Status)
}
