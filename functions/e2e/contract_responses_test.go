package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/task"
)

// checkedClient makes calls as one caller and checks each response against the contract.
type checkedClient struct {
	*cluster.Client
	checker *contract.Checker
}

func (s checkedClient) as(caller *cluster.Client) checkedClient {
	return checkedClient{caller, s.checker}
}

// call makes one call and requires its status. header has names and values alternately.
func (s checkedClient) call(status int, method, path, body string, header ...string) cluster.Reply {
	s.T.Helper()
	return s.send(s.Request(s.T.Context(), method, path, body, header...), status)
}

func (s checkedClient) send(req *http.Request, status int) cluster.Reply {
	s.T.Helper()
	res, err := s.checker.RoundTrip(req)
	require.NoError(s.T, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(s.T, err)
	r := cluster.Reply{T: s.T, Status: res.StatusCode, Header: res.Header, Text: string(text)}
	require.Equal(s.T, status, r.Status, "%s %s: %s", req.Method, req.URL, text)
	if len(text) > 0 && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/") {
		require.NoError(s.T, json.Unmarshal(text, &r.Body))
	}
	return r
}

func (s checkedClient) get(status int, path string) cluster.Reply {
	s.T.Helper()
	return s.call(status, "GET", path, "")
}

func (s checkedClient) post(status int, path, body string, header ...string) cluster.Reply {
	s.T.Helper()
	return s.call(status, "POST", path, body, header...)
}

// submit submits a task and returns its id.
func (s checkedClient) submit(body string) string {
	s.T.Helper()
	return s.post(200, "/api/v1/sms/send", body).Data("task_id").(string)
}

// claim claims the one pending task and returns its id. It waits up to 10 s, because a claim may find a task a little
// later than the task became pending again.
func (s checkedClient) claim() string {
	s.T.Helper()
	tasks := s.post(200, "/api/v1/sms/tasks/pending", `{"app_id":"app","limit":1,"wait":10}`).List()
	require.Len(s.T, tasks, 1)
	return tasks[0]["task_id"].(string)
}

// runAll calls every operation of the contract. Each method covers one subject.
func (s checkedClient) runAll() {
	s.templates()
	s.defaults()
	s.submitting()
	s.sending()
	s.repair()
	s.messages()
	s.subscribeMessages()
	s.conversations()
	s.accepting()
	s.streams()
	s.webhooks()
	s.deadLetters()
	s.pauses()
	s.alerts()
	s.callersAndBlockedWords()
	s.eventsAndHealth()
	s.refusals()
}

// runAll must get every response that the contract lists for each operation, except 5xx, and 429, which some operations
// return only after many calls. The checker fails each call that gets a response that the contract does not list.
func TestContractListsExactlyTheResponses(t *testing.T) {
	t.Parallel()
	cluster.OnBothServers(t, func(t *testing.T, h cluster.Host) {
		s := checkedClient{h.Serve(t), contract.NewChecker(t)}
		s.runAll()

		c := s.checker.Contract
		for pattern, operation := range c.Operations {
			for status := range operation.Node["responses"].(contract.Object) {
				if status == "429" || status >= "500" {
					continue
				}
				response, _ := c.Child(operation, "responses", status)
				for _, code := range c.ErrorCodes(response) {
					listed := strings.TrimSpace(pattern + " " + status + " " + code)
					require.True(t, s.checker.Seen[listed], "no call got the listed response %s", listed)
				}
			}
		}
	})
}

func (s checkedClient) templates() {
	s.T.Helper()
	created := s.post(200, cluster.AdminPath+"template", `{"template_name":"验证码模板","template_content":"您的验证码是{code}，用户{name}"}`)
	at := fmt.Sprintf("%stemplate/%v", cluster.AdminPath, created.Data("id"))
	s.post(200, cluster.AdminPath+"template", `{"template_name":"第二","template_content":"{a}"}`)
	require.Equal(s.T, "1", s.get(200, cluster.AdminPath+"template?limit=1&active=true").Data("next_after"))
	s.get(200, cluster.AdminPath+"template?after=1")
	s.get(200, at)
	s.call(200, "PUT", at, `{"template_name":"验证码"}`)
	s.post(200, at+"/deactivate", "")
	s.post(200, at+"/activate", "")
	s.post(200, at+"/preview", `{"content":"code=1&name=a&x=2"}`)
	s.post(200, at+"/preview", `{"params":{"code":1}}`)
	s.post(400, at+"/preview", `{"template_content":"x"}`)
	s.post(200, cluster.AdminPath+"template/preview", `{"template_content":"{a}","params":{"a":"b"}}`)
	s.post(400, cluster.AdminPath+"template/preview", `{"params":{"a":"b"}}`)
	s.post(400, cluster.AdminPath+"template", `{"template_name":" "}`)
	s.call(400, "PUT", at, `{}`)
	s.get(404, cluster.AdminPath+"template/99")
	s.call(404, "PUT", cluster.AdminPath+"template/99", `{"is_active":true}`)
	for _, action := range []string{"activate", "deactivate"} {
		s.post(404, cluster.AdminPath+"template/99/"+action, "")
	}
	s.post(404, cluster.AdminPath+"template/99/preview", `{"content":"a=b"}`)
}

func (s checkedClient) defaults() {
	s.T.Helper()
	created := s.post(200, cluster.AdminPath+"default-sms", `{"phone_number":"13800138000","content":"欢迎使用我们的服务","use_template":false}`)
	at := fmt.Sprintf("%sdefault-sms/%v", cluster.AdminPath, created.Data("id"))
	s.post(409, cluster.AdminPath+"default-sms", `{"phone_number":"13800138000","content":"x"}`)
	s.post(400, cluster.AdminPath+"default-sms", `{"phone_number":"x"}`)
	s.post(200, cluster.AdminPath+"default-sms", `{"phone_number":"+8613800138000","content":"x"}`)
	require.Len(s.T, s.get(200, cluster.AdminPath+"default-sms?phone_number=%2B8613800138000&is_sent=false").Data("items"), 1)
	s.get(200, cluster.AdminPath+"default-sms?limit=1")
	s.get(200, at)
	s.call(200, "PUT", at, `{"content":"欢迎"}`)
	s.call(400, "PUT", at, `{"content":" "}`)

	first := s.submit(`{"phone_number":"13800138000"}`)
	require.Equal(s.T, "欢迎", s.get(200, "/api/v1/sms/task/"+first).Data("content"))
	s.post(409, "/api/v1/sms/send", `{"phone_number":"13800138000"}`)
	s.post(200, at+"/reset", "")
	s.call(200, "DELETE", at, "")
	s.post(404, "/api/v1/sms/send", `{"phone_number":"13800138000"}`)
	s.get(404, at)
	s.call(404, "PUT", at, `{"content":"x"}`)
	s.call(404, "DELETE", at, "")
	s.post(404, at+"/reset", "")
	s.post(200, "/api/v1/sms/task/"+first+"/cancel", "")
}

func (s checkedClient) submitting() {
	s.T.Helper()
	const send = "/api/v1/sms/send"
	keyed := `{"phone_number":"13800138000","content":"code=123456&name=张三&x=1","use_template":true,"source":"system_a"}`
	s.post(200, send, keyed, "Idempotency-Key", "order-1", "X-Request-Id", "req-1")
	again := s.post(200, send, keyed, "Idempotency-Key", "order-1")
	require.Equal(s.T, "true", again.Header.Get("Idempotency-Replayed"))
	s.post(422, send, `{"phone_number":"13800138000","content":"other"}`, "Idempotency-Key", "order-1")
	s.get(200, "/api/v1/sms/by-key/order-1")
	s.get(404, "/api/v1/sms/by-key/order-2")
	s.get(400, "/api/v1/sms/by-key/order%20")
	id := again.Data("task_id").(string)
	s.post(200, "/api/v1/sms/task/"+id+"/cancel", "{}")
	s.post(400, "/api/v1/sms/task/"+id+"/cancel", `{"reason":"x"}`)
	s.post(404, "/api/v1/sms/task"+cluster.UnknownIDPath+"/cancel", "")
	s.get(404, "/api/v1/sms/task"+cluster.UnknownIDPath)
	s.post(400, send, `{"phone_number":"138","content":"x","max_retries":11,"surprise":1}`)
	full := s.submit(`{"phone_number":"+8613800138000","params":{"code":1,"name":"张三"},"template_name":"验证码","source":"a","priority":0,
		"send_at":"2026-01-01T00:00:00+08:00","ttl_seconds":31622400,"max_retries":1,"on_unknown":"hold","queue":"q",
		"callback_url":"https://example.com/x","metadata":{"a":1}}`)
	s.get(200, "/api/v1/sms/task/"+full)
	s.post(200, "/api/v1/sms/task/"+full+"/cancel", "")

	// A transaction that has inserted the key is open.
	s.Exec("begin")
	s.Exec("insert into submission_keys (key, fingerprint, id) values ($1, $1, $1)", task.KeyHash(0, "sms", "order-3"))
	s.post(409, send, `{"phone_number":"13800138000","content":"x"}`, "Idempotency-Key", "order-3")
	s.Exec("rollback")

	batch := s.post(200, send+"/batch", `{"items":[{"phone_number":"13800138000","content":"x","queue":"q"},{"content":"x"},
		{"phone_number":"13800138000","content":"code=1&name=b","use_template":true,"idempotency_key":"order-1"},7]}`)
	require.Len(s.T, batch.Data("items"), 4)
	s.post(400, send+"/batch", `{"items":[]}`)
	s.post(400, send+"/batch", `{"items":[{}]}`, "Idempotency-Key", "order-1")
}

func (s checkedClient) sending() {
	s.T.Helper()
	const pending, report = "/api/v1/sms/tasks/pending", "/api/v1/sms/report"
	s.post(200, "/api/v1/sms/send/batch", `{"items":[{"phone_number":"13800138000","content":"one"},{"phone_number":"13800138000","content":"two"}]}`)
	tasks := s.get(200, pending+"?app_id=app&limit=10&queue=default&lease_seconds=60&marks_sending=true&wait=0").List()
	require.Len(s.T, tasks, 2)
	require.Empty(s.T, s.get(200, pending+"?app_id=app").List())
	s.get(400, pending)
	s.post(400, pending, `{"app_id":"app","limit":0}`)

	id, claim := tasks[0]["task_id"].(string), tasks[0]["claim_id"].(string)
	extend := "/api/v1/sms/tasks/" + id + "/extend"
	s.post(409, "/api/v1/sms/task/"+id+"/cancel", "")
	s.post(200, extend, fmt.Sprintf(`{"app_id":"app","claim_id":%q,"lease_seconds":300,"sending":true}`, claim))
	s.post(409, extend, `{"app_id":"other"}`)
	s.post(400, extend, `{}`)
	s.post(404, "/api/v1/sms/tasks"+cluster.UnknownIDPath+"/extend", `{"app_id":"app"}`)

	done := fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2,"error_message":"","should_retry":false}`, id)
	s.post(200, report, done)
	require.Equal(s.T, true, s.post(200, report, done).Data("already"))
	s.post(409, report, fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%s,"status":3}`, id, claim))
	s.post(404, report, strings.Replace(done, id, cluster.UnknownIDPath[1:], 1))
	s.post(400, report, `{"task_id":"x","app_id":"app"}`)
	other := tasks[1]["task_id"].(string)
	batch := s.post(200, report+"/batch", fmt.Sprintf(`{"app_id":"app","items":[
		{"task_id":%q,"status":3,"error_code":"X","error_message":"no carrier","should_retry":true},{"task_id":%q,"status":3},{}]}`, other, id))
	require.Len(s.T, batch.Data("items"), 3)
	s.post(400, report+"/batch", `{"app_id":"app","items":[]}`)

	require.Equal(s.T, other, s.claim())
	s.post(200, report, fmt.Sprintf(`{"task_id":%q,"app_id":"app","outcome":"released","retry_after_seconds":86400}`, other))
	s.get(200, "/api/v1/sms/task/"+other)
}

func (s checkedClient) repair() {
	s.T.Helper()
	held := s.submit(`{"phone_number":"13800138001","content":"x","on_unknown":"hold"}`)
	require.Equal(s.T, held, s.claim())
	s.post(200, "/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","outcome":"unknown"}`, held))
	at := cluster.AdminPath + "tasks/"
	s.get(200, at+held)
	s.post(200, at+held+"/resolve", `{"outcome":"succeeded","reason":"the provider confirms it"}`)
	s.post(409, at+held+"/resolve", `{"outcome":"failed","reason":"x"}`)
	s.post(400, at+held+"/resolve", `{}`)
	s.post(409, at+held+"/retry", "")
	s.post(409, at+held+"/cancel", "")

	failed := s.submit(`{"phone_number":"13800138001","content":"x"}`)
	require.Equal(s.T, failed, s.claim())
	s.post(200, "/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":3,"error_code":"E","error_message":"refused"}`, failed))
	s.get(200, cluster.AdminPath+"tasks?state=failed&reason=rejected&phone_number=13800138001&caller_id=0&from=2020-01-01T00:00:00Z&to=2099-01-01T00:00:00Z&limit=5")
	s.post(200, at+failed+"/retry", `{"reason":"the gateway was down"}`)
	require.Equal(s.T, failed, s.claim())
	s.get(200, cluster.AdminPath+"tasks?state=processing&queue=default")
	s.get(200, cluster.AdminPath+"statistics")
	s.post(200, "/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":3,"should_retry":true}`, failed))
	s.get(200, cluster.AdminPath+"statistics")
	s.post(200, at+failed+"/cancel", `{"reason":"asked for by phone"}`)
	s.post(200, at+failed+"/reveal", `{"reason":"the customer asks what was sent"}`)
	s.get(200, at+failed)
	s.get(404, at+cluster.UnknownIDPath[1:])
	for _, action := range []string{"/retry", "/cancel", "/reveal"} {
		s.post(404, cluster.AdminPath+"tasks"+cluster.UnknownIDPath+action, "")
	}
	s.post(404, cluster.AdminPath+"tasks"+cluster.UnknownIDPath+"/resolve", `{"outcome":"failed","reason":"x"}`)
	after := s.get(200, cluster.AdminPath+"tasks?limit=1").Data("next_after")
	s.get(200, fmt.Sprintf("%stasks?source=system_a&after=%v", cluster.AdminPath, after))
	s.get(400, cluster.AdminPath+"tasks?state=lost&phone_number=+86138")
	preview := s.post(200, cluster.AdminPath+"bulk/preview", `{"action":"retry","filter":{"state":"failed"}}`)
	s.post(400, cluster.AdminPath+"bulk/preview", `{"action":"retry","filter":{"state":"held"}}`)
	s.post(409, cluster.AdminPath+"bulk", `{"action":"retry","filter":{"state":"failed"},"expected":0,"reason":"x"}`)
	s.post(400, cluster.AdminPath+"bulk", `{"action":"retry","filter":{"state":"failed"}}`)
	bulk := s.post(200, cluster.AdminPath+"bulk", fmt.Sprintf(`{"action":"retry","filter":{"state":"failed"},"expected":%v,"reason":"the gateway was down"}`, preview.Data("matched")))
	s.get(200, cluster.AdminPath+"bulk?limit=1")
	s.get(400, cluster.AdminPath+"bulk?limit=0")
	s.get(200, fmt.Sprintf("%sbulk/%v", cluster.AdminPath, bulk.Data("id")))
	s.get(400, fmt.Sprintf("%sbulk/%v?x=1", cluster.AdminPath, bulk.Data("id")))
	s.post(200, fmt.Sprintf("%sbulk/%v/stop", cluster.AdminPath, bulk.Data("id")), `{"reason":"it was the wrong queue"}`)
	s.post(400, fmt.Sprintf("%sbulk/%v/stop", cluster.AdminPath, bulk.Data("id")), `{"reason":1}`)
	s.get(404, cluster.AdminPath+"bulk"+cluster.UnknownIDPath)
	s.post(404, cluster.AdminPath+"bulk"+cluster.UnknownIDPath+"/stop", "")
	s.get(200, cluster.AdminPath+"overview")
	s.get(400, cluster.AdminPath+"overview?queue=default")
	s.get(200, cluster.AdminPath+"search?q="+failed)
	s.get(200, cluster.AdminPath+"search?q=13800138001")
	s.get(400, cluster.AdminPath+"search?q=")
	s.get(200, cluster.AdminPath+"actions?limit=2")
	s.get(200, cluster.AdminPath+"actions?after=1000000&subject="+failed)
}

func (s checkedClient) callersAndBlockedWords() {
	s.T.Helper()
	word := s.post(200, cluster.AdminPath+"blocked-words", `{"word":"免费贷款"}`)
	s.post(200, cluster.AdminPath+"blocked-words", `{"word":"免费贷款"}`)
	s.post(400, cluster.AdminPath+"blocked-words", `{"word":""}`)
	s.post(400, "/api/v1/sms/send", `{"phone_number":"13800138000","content":"免费贷款！"}`)
	s.post(200, cluster.AdminPath+"template/preview", `{"template_content":"免费贷款"}`)
	s.get(200, cluster.AdminPath+"blocked-words?limit=1")
	s.call(200, "DELETE", fmt.Sprintf("%sblocked-words/%v", cluster.AdminPath, word.Data("id")), "")
	s.call(404, "DELETE", cluster.AdminPath+"blocked-words/99", "")

	created := s.post(200, cluster.AdminPath+"callers", `{"name":"system_a","roles":["submitter","sender"],"queues":["q"],"business_types":["coupon"]}`)
	s.post(409, cluster.AdminPath+"callers", `{"name":"system_a","roles":["sender"]}`)
	s.post(400, cluster.AdminPath+"callers", `{"name":"ä","roles":[]}`)
	limited := *s.Client
	limited.User, limited.Password = "system_a", created.Data("token").(string)
	systemA := s.as(&limited)
	systemA.post(403, "/api/v1/sms/send", `{"phone_number":"13800138000","content":"x"}`)
	systemA.post(403, "/api/v1/sms/tasks/pending", `{"app_id":"app"}`)
	at := fmt.Sprintf("%scallers/%v", cluster.AdminPath, created.Data("id"))
	s.get(200, cluster.AdminPath+"callers?limit=1")
	s.get(200, cluster.AdminPath+"callers/names?ids=0,1")
	s.get(400, cluster.AdminPath+"callers/names?ids=x")
	s.get(200, at)
	s.call(200, "PUT", at, `{"queues":[]}`)
	systemA.post(403, "/api/v1/subscribe/send", cluster.Booking(1, ""))
	s.call(400, "PUT", at, `{}`)
	s.post(200, at+"/rotate", "")
	s.post(200, at+"/revoke", "")
	s.post(409, at+"/rotate", "")
	s.call(409, "PUT", at, `{"roles":["sender"]}`)
	none := cluster.AdminPath + "callers/99"
	s.get(404, none)
	s.call(404, "PUT", none, `{"roles":["sender"]}`)
	s.post(404, none+"/rotate", "")
	s.post(404, none+"/revoke", "")
}

func (s checkedClient) eventsAndHealth() {
	s.T.Helper()
	for _, event := range []string{"/events/sweep", "/events/relay", "/events/deliver", "/events/save", "/events/wechat"} {
		s.post(204, event, "{}", cluster.TickHeader...)
		s.post(204, event, "", cluster.TickHeader...)
		s.post(204, event, `{"specversion":"1.0","id":"2","source":"/test","type":"tick"}`, "Content-Type", "application/cloudevents+json")
		s.post(400, event, "{}")
	}
	s.get(200, "/healthz")
	s.get(200, "/metrics")
	s.get(200, "/exporter/metrics")
	s.get(200, "/readyz")
	s.get(404, "/api/v1/sms/nowhere")
	if s.Host.Name == cluster.OwnServer.Name { // the server of the Functions Framework redirects instead
		s.get(404, "/api/v1/sms//send")
	}
	s.call(405, "PUT", "/api/v1/sms/send", "{}")
	s.get(405, "/api/v1/sms/send")
	s.call(405, "DELETE", "/api/v1/sms/tasks/pending", "")
}

// refusals makes the calls that every operation refuses in the same way.
func (s checkedClient) refusals() {
	s.T.Helper()
	byRole := map[any]checkedClient{}
	for _, role := range []string{"receiver", "submitter", "sender"} {
		byRole[role] = s.as(s.NewCaller("only-"+role, role))
	}
	stranger := *s.Client
	stranger.Password = "guess"
	ignoreQuery := []string{"sweep", "relay", "deliver"}
	var strangers sync.WaitGroup
	defer strangers.Wait()
	for pattern, operation := range s.checker.Contract.Operations {
		if operation.Node["security"] != nil {
			continue // the probes need no credentials
		}
		method, path, _ := strings.Cut(pattern, " ")
		path = contract.PathValues.Replace(path)
		strangers.Go(func() { // in parallel, because each failed login is delayed
			res, err := s.checker.RoundTrip(stranger.Request(s.T.Context(), method, path, ""))
			if assert.NoError(s.T, err) {
				assert.Equal(s.T, 401, res.StatusCode, pattern)
			}
		})
		for role, caller := range byRole {
			if !slices.Contains(operation.Node["x-roles"].([]any), role) {
				caller.call(403, method, path, "")
			}
		}
		s.call(415, method, path, "x", "Content-Type", "text/plain")
		if !slices.Contains(ignoreQuery, operation.Node["operationId"].(string)) {
			s.call(400, method, path+"?surprise=1", "")
		}
		req := s.Request(s.T.Context(), method, path, "not sent")
		req.Header.Del("Content-Type")
		req.ContentLength = 17 << 20
		req.Header.Set("Expect", "100-continue") // the body is refused before it is sent
		s.send(req, 413)
	}
}

func TestContractCoversCallsWithoutDatabase(t *testing.T) {
	t.Parallel()
	cluster.OnBothServers(t, func(t *testing.T, h cluster.Host) {
		s := checkedClient{h.At(t, "postgres://nobody@127.0.0.1:1/none", ""), contract.NewChecker(t)}
		// These operations return a result for each item, have no required parameter in the example call, or need no
		// database.
		exceptions := map[string]int{"callerNames": 400, "sendBatch": 200, "reportBatch": 200, "previewText": 200, "streamToken": 200, "healthz": 200, "metrics": 200, "exporterMetrics": 200, "save": 204, "wechat": 204}
		for pattern, operation := range s.checker.Contract.Operations {
			want, found := exceptions[operation.Node["operationId"].(string)]
			if !found {
				want = 503
			}
			req := s.checker.Contract.ExampleCall(t, s.URL, pattern)
			req.SetBasicAuth(s.User, s.Password)
			s.send(req, want)
		}
	})
}

func TestContractCoversInternalErrors(t *testing.T) {
	t.Parallel()
	s := checkedClient{cluster.Serve(t), contract.NewChecker(t)}
	s.Exec("alter table callers rename column name to another")
	require.Equal(t, "internal", s.get(500, cluster.AdminPath+"callers").Body["error"])
}
