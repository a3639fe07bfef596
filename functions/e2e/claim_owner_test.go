package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

const sms = "/api/v1/sms/"

// claimOne claims one task as app and gives its id and its claim_id.
func claimOne(s *server, app string) (id, claim string) {
	s.t.Helper()
	r := s.get(sms + "tasks/pending?limit=1&app_id=" + app)
	require.Equal(s.t, 200, r.status, r.text)
	require.Len(s.t, r.list(), 1, r.text)
	return r.list()[0]["task_id"].(string), r.list()[0]["claim_id"].(string)
}

// foreignCalls are all calls by which a sender that knows the task, the app and the claim
// could act on another's claim.
func foreignCalls(s *server, id, app, claim string) map[string]reply {
	report := fmt.Sprintf(`{"task_id":%q,"app_id":%q`, id, app)
	return map[string]reply{
		"extend":             s.post(sms+"tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":%q,"lease_seconds":3600}`, app)),
		"mark as sending":    s.post(sms+"tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":%q,"claim_id":%q,"sending":true}`, app, claim)),
		"report a success":   s.post(sms+"report", report+`,"status":2}`),
		"report a failure":   s.post(sms+"report", report+`,"claim_id":"`+claim+`","status":3}`),
		"ask for a retry":    s.post(sms+"report", report+`,"claim_id":"`+claim+`","status":3,"should_retry":true}`),
		"release":            s.post(sms+"report", report+`,"claim_id":"`+claim+`","outcome":"released"}`),
		"claim not to know":  s.post(sms+"report", report+`,"outcome":"unknown"}`),
		"report another app": s.post(sms+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"other","status":2}`, id)),
	}
}

func TestClaimBelongsToItsCaller(t *testing.T) {
	t.Parallel()
	s := serve(t)
	phone, hostile := s.caller("phone", "sender"), s.caller("hostile", "sender")
	for range 2 {
		require.Equal(t, 200, s.post(sms+"send", `{"phone_number":"13800138000","content":"hello"}`).status)
	}
	id, first := claimOne(phone, "app")
	require.Equal(t, 200, phone.post(sms+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","outcome":"released"}`, id)).status)
	again, claim := claimOne(phone, "app")
	require.Equal(t, id, again)
	older := phone.post(sms+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, id, first))
	before := s.get(sms + "task/" + id)

	refused := func(by *server) {
		t.Helper()
		for name, r := range foreignCalls(by, id, "app", claim) {
			require.Equal(t, 409, r.status, "%s: %s", name, r.text)
			require.Equal(t, "stale_claim", r.body["error"])
			if name != "extend" && name != "mark as sending" {
				require.Equal(t, older.text, r.text, "%s: answered as a report of an older claim", name)
			}
		}
		batch := by.post(sms+"report/batch", fmt.Sprintf(`{"app_id":"app","items":[{"task_id":%q,"status":2},{"task_id":%q,"status":2}]}`, id, task.NewID()))
		require.Equal(t, 200, batch.status, batch.text)
		items := batch.data("items").([]any)
		require.EqualValues(t, 409, items[0].(map[string]any)["code"])
		require.EqualValues(t, 404, items[1].(map[string]any)["code"], "an unknown task")
	}
	for _, by := range []*server{hostile, s} { // s is the built-in admin, who has resolve
		refused(by)
	}
	require.Equal(t, before.text, s.get(sms+"task/"+id).text, "nothing was changed")
	other, theirs := claimOne(hostile, "app")
	require.NotEqual(t, id, other)

	require.Equal(t, 200, phone.post(sms+"tasks/"+id+"/extend", `{"app_id":"app","sending":true}`).status)
	require.Equal(t, 200, phone.post(sms+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, id, claim)).status)
	refused(hostile) // after its end too: no 200 with already
	shown := s.get("/api/v1/admin/tasks/" + id).data("task").(map[string]any)
	require.NotEmpty(t, shown["claimed_by"])
	require.Equal(t, 409, phone.post(sms+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, other, theirs)).status, "nor the other way round")
}

func TestBuiltInPairClaimsAndReportsAsBefore(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.post(sms+"send", `{"phone_number":"13800138000","content":"hello"}`)
	id, _ := claimOne(s, "app")
	require.Equal(t, 200, s.post(sms+"tasks/"+id+"/extend", `{"app_id":"app"}`).status)
	report := fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, id)
	require.Equal(t, 200, s.post(sms+"report", report).status, "without a claim_id, as the original API")
	require.Equal(t, true, s.post(sms+"report", report).data("already"))
}

func TestTaskOfAFunctionIsReportedByNoCaller(t *testing.T) {
	t.Parallel()
	s := serve(t)
	made := orderMessage(s, booking(1, ""))
	// As the function wechat leaves it while it sends.
	s.exec(`update task_live set state = 2, claim_id = 77, app_id = 'wechat-x', due_at = now() + interval '1 minute', claimed_by = $1, owned_claim = 77`, task.ServiceCaller)
	hostile := s.caller("hostile", "sender")
	for _, by := range []*server{hostile, s} {
		for name, r := range foreignCalls(by, made.data("task_id").(string), "wechat-x", "77") {
			require.Equal(t, 409, r.status, "%s: %s", name, r.text)
		}
	}
	require.Equal(t, 1, s.count(`select count(*) from task_live where state = 2 and claim_id = 77`))
}

func TestRecordedMessageBelongsToItsRecorder(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, hostile := s.caller("shop", "submitter"), newCaller(s, "hostile", `"roles":["submitter","sender"]`)
	made := shop.post(subscriptions+"record", recording(1, ""))
	require.Equal(t, 200, made.status, made.text)
	at, claim := fmt.Sprintf("%s%v/status", subscriptions, made.data("id")), made.data("claim_id").(string)
	status := fmt.Sprintf(`{"app_id":"app","claim_id":%q,"send_status":`, claim)
	for _, n := range []string{"0}", "1}", "2}"} {
		require.Equal(t, 404, hostile.post(at, status+n).status)
		require.Equal(t, 409, s.post(at, status+n).status, "an admin resolves")
	}
	for name, r := range foreignCalls(hostile, made.data("task_id").(string), "app", claim) {
		require.Equal(t, 409, r.status, "%s: %s", name, r.text)
	}
	require.Equal(t, 200, shop.post(at, status+"0}").status)
	require.Equal(t, 200, shop.post(at, status+"1}").status)
}
