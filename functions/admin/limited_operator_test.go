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

const bulkAdminFields = `"roles":["admin"],"queues":["bulk"]`

// Operations without x-within-queues in the API specification return 403 to a limited operator.
func TestLimitedOperatorIsRefusedByDefault(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.NewCallerWith("first", bulkAdminFields) // has the id 1, whose caller an example request revokes
	limited := s.NewCallerWith("limited", bulkAdminFields)
	c := contract.Read(t)
	for pattern, operation := range c.Operations {
		roles, _ := operation.Node["x-roles"].([]any)
		if roles == nil {
			continue // health checks
		}
		req := c.ExampleCall(t, s.URL, pattern)
		req.SetBasicAuth(limited.User, limited.Password)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		refused := strings.Contains(string(body), "more than the queues to which this admin is limited: bulk") || strings.Contains(string(body), "this needs the role")
		if operation.Node["x-within-queues"] == true {
			require.Contains(t, roles, "admin", pattern)
			require.False(t, refused, "%s: %s", pattern, body)
			continue
		}
		require.Equal(t, 403, res.StatusCode, "%s: %s", pattern, body)
		require.True(t, refused, "%s: %s", pattern, body)
	}
}

func TestLimitedOperatorSeesOnlyItsQueues(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	bulkAdmin, defaultAdmin := s.NewCallerWith("bulk-admin", bulkAdminFields), s.NewCallerWith("default-admin", `"roles":["admin"],"queues":["default"]`)
	bulkTask, defaultTask := s.SubmitTo("bulk"), s.SubmitTo("default")

	for _, c := range [][3]string{{"GET", "", ""}, {"POST", "/retry", ""}, {"POST", "/resolve", `{"outcome":"failed","reason":"x"}`}, {"POST", "/cancel", ""}} {
		method, path, body := c[0], c[1], c[2]
		existing, unknown := bulkAdmin.Do(method, cluster.AdminPath+"tasks/"+defaultTask+path, body), bulkAdmin.Do(method, cluster.AdminPath+"tasks"+cluster.UnknownIDPath+path, body)
		require.Equal(t, 404, existing.Status, "%s: %s", path, existing.Text)
		require.Equal(t, unknown.Text, existing.Text, "the response is the same as for an unknown id")
		require.NotEqual(t, 404, bulkAdmin.Do(method, cluster.AdminPath+"tasks/"+bulkTask+path, body).Status, path)
		require.NotEqual(t, 404, s.Do(method, cluster.AdminPath+"tasks/"+defaultTask+path, "").Status, path)
	}
	defaultTask, bulkTask = s.SubmitTo("default"), s.SubmitTo("bulk") // the earlier tasks are cancelled
	listTasks := func(admin *cluster.Client, query string) []any {
		return admin.Get(cluster.AdminPath + "tasks" + query).Values("task_id")
	}
	require.Contains(t, listTasks(bulkAdmin, ""), bulkTask)
	require.NotContains(t, listTasks(bulkAdmin, ""), defaultTask)
	require.NotContains(t, listTasks(bulkAdmin, "?phone_number=13800138000"), defaultTask)
	require.NotContains(t, listTasks(bulkAdmin, "?state=pending"), defaultTask)
	require.Contains(t, listTasks(defaultAdmin, "?state=pending"), defaultTask)
	require.Equal(t, 403, bulkAdmin.Get(cluster.AdminPath+"tasks?queue=default").Status)

	for _, action := range []string{"pause", "resume"} {
		path := cluster.AdminPath + "queues/default/" + action
		require.Equal(t, 403, bulkAdmin.Post(path, `{"reason":"x"}`).Status, action)
		require.Equal(t, 200, defaultAdmin.Post(path, `{"reason":"x"}`).Status, action)
	}
	queues := bulkAdmin.Get(cluster.AdminPath + "queues")
	require.Contains(t, queues.Text, `"bulk"`)
	require.NotContains(t, queues.Text, `"default"`)
	bulkAdmin.Post(cluster.AdminPath+"queues/bulk/pause", `{"reason":"x"}`).RequireOK()
	require.Equal(t, 403, bulkAdmin.Get(cluster.AdminPath+"subscribe-templates").Status)
	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, reason) select 't', id, 1, 'x' from callers where name = 'bulk-admin'`)
	list := s.NewCallerWith("wechat-admin", `"roles":["admin"],"queues":["wechat"]`).Get(cluster.AdminPath + "subscribe-templates")
	require.Equal(t, 200, list.Status)
	require.NotEmpty(t, list.Data("templates"))
	require.NotContains(t, list.Text, "bulk-admin", "the names of other callers are hidden")

	s.Exec(`insert into alerts (id, kind, queue, value, threshold) values (gen_random_uuid(), 'backlog', 'default', 9, 1), (gen_random_uuid(), 'backlog', 'bulk', 9, 1), (gen_random_uuid(), 'stream_full', 'bulk', 0.9, 0.8)`)
	alerts := bulkAdmin.Get(cluster.AdminPath + "alerts")
	require.Contains(t, alerts.Text, `"bulk"`)
	require.NotContains(t, alerts.Text, `"default"`)
	require.NotContains(t, alerts.Text, `stream_full`, "an alert about a stream is not about the queue of the same name")
	require.Contains(t, s.Get(cluster.AdminPath+"alerts").Text, `stream_full`)
	require.Contains(t, s.Get(cluster.AdminPath+"overview").Text, `stream_full`)
	require.NotContains(t, bulkAdmin.Get(cluster.AdminPath+"overview").Text, `stream_full`)
}

func TestLimitedOperatorActsOnlyForItselfInOtherRoles(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	operator := s.NewCallerWith("team", `"roles":["admin","submitter","receiver"],"queues":["bulk","wechat"]`)
	shop := s.NewCallerWith("shop", `"roles":["submitter","receiver"]`)
	shopTask := shop.SubmitTo("bulk")
	require.Equal(t, 404, operator.Get(cluster.SMSPath+"task/"+shopTask).Status)
	require.Equal(t, 404, operator.Post(cluster.SMSPath+"task/"+shopTask+"/cancel", "").Status)
	operator.Get(cluster.SMSPath + "task/" + operator.SubmitTo("bulk")).RequireOK()

	endpoint := shop.Post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook"}`).RequireOK()
	require.Equal(t, 404, operator.Get(fmt.Sprintf("/api/v1/webhooks/endpoints/%v", endpoint.Data("id"))).Status)
	require.Equal(t, 404, operator.Post(fmt.Sprintf("/api/v1/webhooks/endpoints/%v/rotate-secret", endpoint.Data("id")), "").Status)
	require.Equal(t, 403, operator.Get("/api/v1/webhooks/endpoints?caller_id=2").Status)
	require.Equal(t, 400, operator.Post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/hook","events":["alert.raised"]}`).Status)

	require.Equal(t, 403, operator.Get("/api/v1/stream/shop").Status)
	require.Equal(t, 403, operator.Post("/api/v1/messages", `{"client_msg_id":"1","from":"shop","to":"shop","type":"t","data":"x"}`).Status)
	require.Equal(t, 403, operator.Get("/api/v1/messages?between=shop,other").Status)
	at := shop.Subscribe(cluster.Booking(1, "")).Header.Get("Location")
	require.Equal(t, 404, operator.Get(at).Status)
	require.Equal(t, 403, operator.Post(at+"/resend", "").Status)
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentFailed})
	require.Equal(t, 403, operator.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")).Status, "a limited operator cannot replace the message of another caller")
	require.Equal(t, true, shop.Subscribe(cluster.Booking(1, "")).Data("again"))
}

func TestLimitedOperatorCannotGrantMoreThanItHas(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	operator := s.NewCallerWith("team", `"roles":["admin","sender"],"queues":["bulk","slow"],"receives":["orders.new"]`)
	const callers = cluster.AdminPath + "callers"
	excessive := map[string][]string{ // fields of a caller -> invalid fields in the response
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
	for grants, fields := range excessive {
		r := operator.Post(callers, `{"name":"team.helper",`+grants+`}`)
		require.Equal(t, 403, r.Status, "%s: %s", grants, r.Text)
		require.Equal(t, fields, r.Fields(), grants)
	}
	require.Equal(t, 0, s.Count(`select count(*) from callers where name = 'team.helper'`))

	helper := operator.Post(callers, `{"name":"team.helper","roles":["admin"],"queues":["bulk"]}`).RequireOK()
	at := fmt.Sprintf("%s/%v", callers, helper.Data("id"))
	for grants, fields := range excessive {
		if !strings.Contains(grants, `"queues"`) {
			continue // an update without queues keeps the queues
		}
		r := operator.Do("PUT", at, "{"+grants+"}")
		require.Equal(t, 403, r.Status, "%s: %s", grants, r.Text)
		require.Equal(t, fields, r.Fields(), grants)
	}
	operator.Do("PUT", at, `{"roles":["sender"]}`).RequireOK()
	operator.Post(at+"/rotate", "").RequireOK()

	var others []string
	for name, grants := range map[string]string{
		"boss": `"roles":["admin"]`, "all-queues": `"roles":["sender"]`, "peer": `"roles":["admin"],"queues":["bulk","default"]`,
		"submitter": `"roles":["submitter"],"queues":["bulk"]`, "receiver": `"roles":["sender"],"queues":["bulk"],"receives":["orders.>"]`,
	} {
		name = "team." + name
		created := s.Post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, grants)).RequireOK()
		others = append(others, name)
		path := fmt.Sprintf("%s/%v", callers, created.Data("id"))
		for _, r := range []cluster.Reply{
			operator.Get(path), operator.Post(path+"/rotate", ""), operator.Post(path+"/revoke", ""),
			operator.Do("PUT", path, `{"roles":["sender"],"queues":["bulk"],"receives":[]}`),
		} {
			require.Equal(t, 404, r.Status, "%s: %s", name, r.Text)
		}
		as := *s
		as.User, as.Password = name, created.Data("token").(string)
		require.NotEqual(t, 401, as.Get(callers).Status, "the caller's token is still valid")
	}
	shown := operator.Get(callers).Text
	for _, name := range others {
		require.NotContains(t, shown, `"`+name+`"`)
	}
	require.Contains(t, shown, `"team.helper"`)

	self := s.CallerPath("team")
	for _, grants := range []string{`{"queues":[]}`, `{"queues":["bulk"]}`, `{"roles":["admin","sender","trigger"]}`} {
		require.Equal(t, 403, operator.Do("PUT", self, grants).Status, "a limited operator cannot change its own limits: %s", grants)
	}
	operator.Post(at+"/revoke", "").RequireOK()
}

// A user's inbox and conversations belong to the caller with the user's name, whatever the caller's queues. So the names of callers
// that a limited operator creates must begin with the operator's name and a dot.
func TestLimitedOperatorCannotTakeUserNames(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	operator := s.NewCallerWith("team", `"roles":["admin","submitter","receiver"],"queues":["bulk"]`)
	const callers, grants = cluster.AdminPath + "callers", `"roles":["submitter","receiver"],"queues":["bulk"]`
	ann := s.NewCallerWith("ann", `"roles":["submitter","receiver"],"queues":["bulk"]`)
	ann.SendText("bob", "1")

	nameWithMessages := operator.Post(callers, `{"name":"bob",`+grants+`}`)
	require.Equal(t, 403, nameWithMessages.Status, nameWithMessages.Text)
	require.Equal(t, []string{"name"}, nameWithMessages.Fields())
	for _, name := range []string{"ann", "admin", "nobody", "team", "team-1", "teamX.1", "Team.1"} {
		r := operator.Post(callers, fmt.Sprintf(`{"name":%q,%s}`, name, grants))
		require.Equal(t, 403, r.Status, "%s: %s", name, r.Text)
		require.Equal(t, nameWithMessages.Body["fields"], r.Body["fields"], "the response does not show whether a name is taken or has messages")
	}
	require.Equal(t, 2, s.Count(`select count(*) from callers`))

	at := s.CallerPath("ann")
	for _, r := range []cluster.Reply{
		operator.Get(at), operator.Post(at+"/rotate", ""), operator.Post(at+"/revoke", ""), operator.Do("PUT", at, `{"roles":["receiver"]}`),
	} {
		require.Equal(t, 404, r.Status, `ann has no more permissions than team, but her name does not begin with "team.": %s`, r.Text)
	}
	require.NotContains(t, operator.Get(callers).Text, `"ann"`)
	require.Equal(t, 200, ann.Get("/api/v1/messages?between=ann,bob").Status, "ann's token is still valid")

	helper := operator.NewCallerWith("team.1", grants)
	require.Equal(t, 403, helper.Get("/api/v1/messages?between=ann,bob").Status)
	require.Contains(t, operator.Get(callers).Text, `"team.1"`)
	s.NewCallerWith("last", `"roles":["sender"]`)
	page := operator.Get(callers + "?limit=1")
	require.Contains(t, page.Text, `"team"`)
	page = operator.Get(fmt.Sprintf("%s?limit=1&after=%v", callers, page.Data("next_after")))
	require.Contains(t, page.Text, `"team.1"`, "hidden callers do not leave gaps in the pages")
	require.Nil(t, page.Data("next_after"))
	require.Equal(t, 200, s.NewCallerWith("bob", `"roles":["receiver"]`).Get("/api/v1/messages?between=ann,bob").Status, "an admin who is not limited to queues may create bob")
}

func TestNewCallerIsCheckedAgainstStoredLimits(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	admin := s.NewCallerWith("admin-before", `"roles":["admin"]`)
	admin.Get(cluster.AdminPath + "callers").RequireOK()
	for _, change := range []string{`queues = '{bulk}'`, `queues = '{}', roles = '{sender}'`, `roles = '{admin}', revoked_at = now()`} {
		s.Exec(`update callers set ` + change) // as another process would; this process has cached the old limits
		r := admin.Post(cluster.AdminPath+"callers", `{"name":"wide","roles":["admin"]}`)
		require.Equal(t, 403, r.Status, "%s: %s", change, r.Text)
	}
	require.Equal(t, 1, s.Count(`select count(*) from callers`))
	require.Equal(t, 200, s.Post(cluster.AdminPath+"callers", `{"name":"wide","roles":["admin"]}`).Status, "the built-in admin has no limits")
}

func TestAdminCannotHaveBusinessTypes(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const callers = "/api/v1/admin/callers"
	created := s.Post(callers, `{"name":"boss","roles":["admin"],"business_types":["coupon"]}`)
	require.Equal(t, 400, created.Status, created.Text)
	require.Equal(t, []string{"business_types"}, created.Fields())
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
