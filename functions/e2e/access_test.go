package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

func TestContractHasExactlyTheRoutesAndTheirRoles(t *testing.T) {
	t.Parallel()
	env, err := fn.NewEnv(settings.Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey}, sandbox.Log(t))
	require.NoError(t, err)
	defer env.Close()
	roles, err := fn.Patterns(env, functions.Catalogue()...)
	require.NoError(t, err)
	want := map[string][]any{"GET /healthz": nil, "GET /readyz": nil, "GET /metrics": nil, "GET /exporter/metrics": nil}
	for pattern, allowed := range roles {
		for _, role := range allowed {
			want[pattern] = append(want[pattern], string(role))
		}
	}
	got := map[string][]any{}
	for pattern, operation := range contract.Read(t).Operations {
		got[pattern], _ = operation.Node["x-roles"].([]any)
	}
	require.Equal(t, want, got, "the roles of each route: expected is the catalogue, actual is openapi.yaml")
}

// TestRoutesAllowOnlyTheirRoles calls each route of the catalogue as each kind of caller.
// TestContractHasExactlyTheRoutesAndTheirRoles compares the catalogue with openapi.yaml.
func TestRoutesAllowOnlyTheirRoles(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	env, h := cluster.NewEnv(t, url)
	admin := cluster.ServeHandler(t, h).Connect(url)
	patterns, err := fn.Patterns(env, functions.Catalogue()...)
	require.NoError(t, err)

	roles := map[string]fn.Role{"a-submitter": fn.Submitter, "a-sender": fn.Sender, "a-receiver": fn.Receiver, "a-trigger": fn.Trigger, "an-admin": fn.Admin}
	callers := map[string]*cluster.Client{}
	for name, role := range roles {
		callers[name] = admin.NewCaller(name, string(role))
	}
	roles["without-a-role"] = "" // the API refuses to remove a caller's last role, so a statement does it
	callers["without-a-role"] = admin.NewCaller("without-a-role", "sender")
	admin.Exec(`update callers set roles = '{}' where name = 'without-a-role'`)
	revoked := admin.NewCaller("revoked", "admin")
	admin.Post("/api/v1/admin/callers/"+admin.QueryText(`select id::text from callers where name = 'revoked'`)+"/revoke", "").RequireOK()
	strangers := map[string]*cluster.Client{"revoked": revoked}
	for name, pair := range map[string][2]string{"nobody": {"", ""}, "unknown": {"nobody", "x"}, "a wrong password": {"a-sender", "x"}, "the name of the built-in admin": {"admin", "x"}} {
		stranger := *admin
		stranger.User, stranger.Password = pair[0], pair[1]
		strangers[name] = &stranger
	}

	var attempts sync.WaitGroup
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		method, path, _ := strings.Cut(pattern, " ")
		path = contract.PathValues.Replace(path)
		// Every route refuses this query or this body after the check of the roles, so nothing is done.
		query, body := "?unknown_parameter=1", ""
		if method != "GET" && method != "DELETE" {
			query, body = "", `{"unknown_field":1}`
		}
		for name, caller := range callers {
			response := caller.Do(method, path+query, body)
			allowed := roles[name] == fn.Admin || slices.Contains(patterns[pattern], roles[name])
			if allowed {
				assert.NotContains(t, []int{200, 401, 403, 500}, response.Status, "%s as %s: %s", pattern, name, response.Text)
			} else {
				assert.Equal(t, 403, response.Status, "%s as %s: %s", pattern, name, response.Text)
			}
		}
		for name, stranger := range strangers {
			attempts.Go(func() { // in parallel, because each failed login is delayed
				response := stranger.Do(method, path, body)
				assert.Contains(t, []int{401, 429}, response.Status, "%s as %s: %s", pattern, name, response.Text)
			})
		}
	}
	attempts.Wait()
	require.Zero(t, admin.Count(`select count(*) from tasks`)+admin.Count(`select count(*) from messages`), "nothing was done")
}

// The hostile caller is an admin, submitter, sender and receiver, but limited to a queue that the owner does not use. As
// this caller, the test calls each operation of the contract, except streams and probes, with the examples of
// openapi.yaml and with the ids of the owner's data. No call may show or change this data.
func TestCallerOfOneQueueCannotReachDataOfOthers(t *testing.T) {
	t.Parallel()
	const mark = "SECRETMARK"
	s := cluster.Serve(t)
	owner := s.NewCallerWith("owner", `"roles":["submitter","sender"],"queues":["default","wechat"]`)
	hostile := s.NewCallerWith("hostile", `"roles":["admin","submitter","sender","receiver"],"queues":["elsewhere"],"business_types":[]`)
	send := `{"phone_number":"13912345678","content":"` + mark + `","idempotency_key":"order-4711"}`
	claimed := owner.Post(cluster.SMSPath+"send", send).Data("task_id").(string)
	_, claimID := owner.ClaimOne("their-app")
	pending := owner.Post(cluster.SMSPath+"send", strings.ReplaceAll(send, "order-4711", "order-4712")).Data("task_id").(string)
	owner.Subscribe(strings.ReplaceAll(cluster.Booking(1, ""), "瑜伽课", mark))
	message := owner.Post(cluster.MessagesPath, `{"client_msg_id":"order-4711","to":"user:bob","data":"`+mark+`"}`).Data("server_msg_id").(string)
	endpoint := fmt.Sprint(owner.Post("/api/v1/webhooks/endpoints", `{"url":"https://example.com/`+mark+`"}`).Data("id"))
	s.Post(cluster.AdminPath+"queues/third/pause", `{"reason":"`+mark+`"}`)

	var tables []string
	for _, name := range []string{"tasks", "task_live", "task_done", "submission_keys", "subscribe_message_logs", "messages", "message_live", "message_cursors",
		"callers", "webhook_endpoints", "webhook_deliveries", "webhook_events", "queue_pauses", "sms_templates", "default_sms_data", "blocked_words"} {
		tables = append(tables, `select '`+name+`' || t::text as line from `+name+` t`)
	}
	s.Exec(`create table before as ` + strings.Join(tables, " union all "))
	require.Greater(t, s.Count(`select count(*) from before`), 10)
	c := contract.Read(t)
	ids := []string{endpoint, message, claimed, "1"}
	idField := regexp.MustCompile(`"(task_id|app_id|claim_id|server_msg_id|queue|from)": ?"[^"]*"`)
	values := map[string]string{"app_id": "their-app", "claim_id": claimID, "server_msg_id": message, "queue": "default", "from": "owner"}
	for pattern, operation := range c.Operations {
		if operation.Node["x-roles"] == nil || strings.Contains(pattern, "/api/v1/stream/") {
			continue // the probes have no roles, and a stream does not end
		}
		method, path, _ := strings.Cut(pattern, " ")
		bodies := []string{""}
		if examples, ok := c.Child(operation, "requestBody", "content", "application/json", "examples"); ok {
			bodies = nil
			for name := range examples.Node {
				body, err := json.Marshal(examples.Node[name].(contract.Object)["value"])
				require.NoError(t, err)
				bodies = append(bodies, string(body))
			}
		}
		query := ""
		for _, p := range c.Parameters(operation, "query") {
			if p["required"] == true {
				query = cmp.Or(query, "?") + fmt.Sprintf("%s=%v&", p["name"], p["example"])
			}
		}
		for _, task := range []string{claimed, pending} {
			for i, id := range ids {
				if i > 0 && !strings.Contains(path, "{id}") {
					break
				}
				at := contract.PathValues.Replace(strings.NewReplacer("{task_id}", task, "{id}", id).Replace(path)) + query
				for _, body := range bodies {
					body = idField.ReplaceAllStringFunc(body, func(field string) string {
						name := idField.FindStringSubmatch(field)[1]
						return fmt.Sprintf("%q:%q", name, cmp.Or(values[name], task))
					})
					response := hostile.Do(method, at, body)
					require.Less(t, response.Status, 500, "%s %s %s: %s", method, at, body, response.Text)
					require.NotContains(t, response.Text, mark, "%s %s %s", method, at, body)
					require.NotContains(t, response.Text, "13912345678", "%s %s %s", method, at, body)
				}
			}
		}
	}
	require.Empty(t, s.QueryText(`select coalesce(string_agg(line, E'\n'), '') from (select line from before except (`+strings.Join(tables, " union all ")+`)) changed`))
	require.Equal(t, 200, owner.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"their-app","claim_id":%q,"status":2}`, claimed, claimID)).Status, "the owner can still report")
}
