package claim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// foreignCalls makes the calls that another caller could make about a claim if it knows the ids of the task, the app and the claim.
func foreignCalls(hostile *cluster.Client, id, app, claim string) map[string]cluster.Reply {
	report := fmt.Sprintf(`{"task_id":%q,"app_id":%q`, id, app)
	return map[string]cluster.Reply{
		"extend":                hostile.Post(cluster.SMSPath+"tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":%q,"lease_seconds":3600}`, app)),
		"mark as sending":       hostile.Post(cluster.SMSPath+"tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":%q,"claim_id":%q,"sending":true}`, app, claim)),
		"report a success":      hostile.Post(cluster.SMSPath+"report", report+`,"status":2}`),
		"report a failure":      hostile.Post(cluster.SMSPath+"report", report+`,"claim_id":"`+claim+`","status":3}`),
		"request a retry":       hostile.Post(cluster.SMSPath+"report", report+`,"claim_id":"`+claim+`","status":3,"should_retry":true}`),
		"release":               hostile.Post(cluster.SMSPath+"report", report+`,"claim_id":"`+claim+`","outcome":"released"}`),
		"report as unknown":     hostile.Post(cluster.SMSPath+"report", report+`,"outcome":"unknown"}`),
		"report as another app": hostile.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"other","status":2}`, id)),
	}
}

func TestClaimBelongsToItsCaller(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	phone, hostile := s.NewCaller("phone", "sender"), s.NewCaller("hostile", "sender")
	for range 2 {
		s.Post(cluster.SMSPath+"send", `{"phone_number":"13800138000","content":"hello"}`).RequireOK()
	}
	id, firstClaim := phone.ClaimOne("app")
	phone.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","outcome":"released"}`, id)).RequireOK()
	sameID, claim := phone.ClaimOne("app")
	require.Equal(t, id, sameID)
	staleReport := phone.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, id, firstClaim))
	before := s.Get(cluster.SMSPath + "task/" + id)

	requireRefused := func(by *cluster.Client) {
		t.Helper()
		for name, r := range foreignCalls(by, id, "app", claim) {
			require.Equal(t, 409, r.Status, "%s: %s", name, r.Text)
			require.Equal(t, "stale_claim", r.Body["error"])
			if name != "extend" && name != "mark as sending" {
				require.Equal(t, staleReport.Text, r.Text, "%s: same response as for a report of an older claim", name)
			}
		}
		batch := by.Post(cluster.SMSPath+"report/batch", fmt.Sprintf(`{"app_id":"app","items":[{"task_id":%q,"status":2},{"task_id":%q,"status":2}]}`, id, task.NewID())).RequireOK()
		require.Equal(t, []int{409, 404}, batch.Codes(), "there is no task with the second id")
	}
	for _, by := range []*cluster.Client{hostile, s} { // s is the built-in admin, which can resolve a task, but not report it
		requireRefused(by)
	}
	require.Equal(t, before.Text, s.Get(cluster.SMSPath+"task/"+id).Text, "nothing was changed")
	other, otherClaim := hostile.ClaimOne("app")
	require.NotEqual(t, id, other)

	phone.Post(cluster.SMSPath+"tasks/"+id+"/extend", `{"app_id":"app","sending":true}`).RequireOK()
	phone.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, id, claim)).RequireOK()
	requireRefused(hostile) // also after phone's report: hostile does not get 200 with "already": true
	shown := s.Get("/api/v1/admin/tasks/" + id).Data("task").(map[string]any)
	require.NotEmpty(t, shown["claimed_by"])
	require.Equal(t, 409, phone.Post(cluster.SMSPath+"report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","claim_id":%q,"status":2}`, other, otherClaim)).Status, "phone cannot report a claim of hostile")
}

func TestTaskClaimedByFunctionWeChatIsNotReportable(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	created := s.Subscribe(cluster.Booking(1, ""))
	// After this update, the row is as it is while the function wechat sends the message.
	s.Exec(`update task_live set state = 2, claim_id = 77, app_id = 'wechat-x', due_at = now() + interval '1 minute', claimed_by = $1`, task.ServiceCaller)
	hostile := s.NewCaller("hostile", "sender")
	for _, by := range []*cluster.Client{hostile, s} {
		for name, r := range foreignCalls(by, created.Data("task_id").(string), "wechat-x", "77") {
			require.Equal(t, 409, r.Status, "%s: %s", name, r.Text)
		}
	}
	require.Equal(t, 1, s.Count(`select count(*) from task_live where state = 2 and claim_id = 77`))
}

func TestRecordedMessageBelongsToItsRecorder(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, hostile := s.NewCaller("shop", "submitter"), s.NewCallerWith("hostile", `"roles":["submitter","sender"]`)
	recorded := shop.Post(cluster.SubscribePath+"record", cluster.Recording(1, "")).RequireOK()
	path, claim := fmt.Sprintf("%s%v/status", cluster.SubscribePath, recorded.Data("id")), recorded.Data("claim_id").(string)
	status := fmt.Sprintf(`{"app_id":"app","claim_id":%q,"send_status":`, claim)
	for _, n := range []string{"0}", "1}", "2}"} {
		require.Equal(t, 404, hostile.Post(path, status+n).Status)
		require.Equal(t, 409, s.Post(path, status+n).Status, "an admin must resolve the task instead")
	}
	for name, r := range foreignCalls(hostile, recorded.Data("task_id").(string), "app", claim) {
		require.Equal(t, 409, r.Status, "%s: %s", name, r.Text)
	}
	shop.Post(path, status+"0}").RequireOK()
	shop.Post(path, status+"1}").RequireOK()
}
