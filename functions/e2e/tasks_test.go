package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestTaskFromSubmitToFinalState(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"您的验证码是123456","source":"system_a"}`)
	require.Equal(t, 200, sent.Status, sent.Text)
	id := sent.Data("task_id").(string)
	require.Equal(t, "success", sent.Body["message"])
	require.EqualValues(t, 0, sent.Data("status"))
	require.Equal(t, "您的验证码是123456", sent.Data("final_content"))
	require.Equal(t, "UCS-2", sent.Data("encoding"))
	require.EqualValues(t, 1, sent.Data("segments"))
	require.Equal(t, "/api/v1/sms/task/"+id, sent.Header.Get("Location"))

	claimed := s.Get("/api/v1/sms/tasks/pending?limit=10&app_id=sms_app_001").List()
	require.Len(t, claimed, 1)
	require.Equal(t, id, claimed[0]["task_id"])
	require.Equal(t, "13800138000", claimed[0]["phone_number"])
	require.Equal(t, "您的验证码是123456", claimed[0]["content"])
	require.EqualValues(t, 0, claimed[0]["retry_count"])
	require.NotEmpty(t, claimed[0]["lease_until"])
	require.Empty(t, s.Post("/api/v1/sms/tasks/pending", `{"app_id":"other"}`).List())
	require.Equal(t, "processing", s.Get("/api/v1/sms/task/"+id).Data("state"))

	report := fmt.Sprintf(`{"task_id":%q,"app_id":"sms_app_001","status":2,"error_message":"","should_retry":false,"claim_id":%v}`, id, claimed[0]["claim_id"])
	require.Equal(t, 200, s.Post("/api/v1/sms/report", report).Status)
	again := s.Post("/api/v1/sms/report", report)
	require.Equal(t, 200, again.Status)
	require.Equal(t, true, again.Data("already"))

	got := s.Get("/api/v1/sms/task/" + id)
	require.EqualValues(t, 2, got.Data("status"))
	require.Equal(t, "succeeded", got.Data("state"))
	require.True(t, strings.HasSuffix(got.Data("sent_at").(string), "Z"), "times are UTC")
}

func TestClaimOfDisconnectedAppReleasesTasks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	all, arrived, left := cluster.Handler(t, proxy.URL()), make(chan struct{}), make(chan struct{})
	s := cluster.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("app_id") == "leaver" {
			context.AfterFunc(r.Context(), func() { close(left) })
			close(arrived)
		}
		all.ServeHTTP(w, r)
	})).Connect(url)
	s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)

	proxy.Stall()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/api/v1/sms/tasks/pending?app_id=leaver", nil)
	require.NoError(t, err)
	req.SetBasicAuth("admin", "secret")
	gone := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		gone <- err
	}()
	<-arrived
	leave()
	require.Error(t, <-gone)
	<-left
	proxy.Resume()
	cluster.Eventually(t, func() bool {
		return s.Count(`select count(*) from report_logs where app_id = 'leaver' and verdict = 'applied'`) == 1
	})
	fresh := s.Get("/api/v1/sms/tasks/pending?app_id=stayer").List()
	require.Len(t, fresh, 1)
	require.EqualValues(t, 0, fresh[0]["retry_count"], "it cost no retry")
}

func TestLateReportAfterExpiredLeaseIsRefused(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Data("task_id").(string)
	old := s.Get("/api/v1/sms/tasks/pending?app_id=a&lease_seconds=10").List()[0]
	longer := s.Post("/api/v1/sms/tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":"a","claim_id":%v,"lease_seconds":60,"sending":true}`, old["claim_id"]))
	require.Equal(t, 200, longer.Status, longer.Text)
	require.Greater(t, longer.Data("lease_until").(string), old["lease_until"].(string))
	s.Exec(`update task_live set due_at = now() - interval '1 minute'`)

	swept := s.Do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "test", "Ce-Type", "sendonce.tick.sweep.v1")
	require.Equal(t, http.StatusNoContent, swept.Status, swept.Text)
	fresh := s.Get("/api/v1/sms/tasks/pending?app_id=b").List()
	require.Len(t, fresh, 1)
	require.EqualValues(t, 1, fresh[0]["retry_count"])
	zombie := s.Get("/api/v1/sms/task/" + id)
	require.Equal(t, "处理超时，自动重试", zombie.Data("result"))
	require.Equal(t, "timeout_retry", zombie.Data("error_code"))
	late := s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","status":2,"claim_id":%v}`, id, old["claim_id"]))
	require.Equal(t, 409, late.Status)
	require.Equal(t, "stale_claim", late.Body["error"])
	require.Equal(t, 409, s.Post("/api/v1/sms/tasks/"+id+"/extend", `{"app_id":"a"}`).Status)
	require.Equal(t, 200, s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"b","status":3,"error_code":"E7","error_message":"no signal"}`, id)).Status)
	got := s.Get("/api/v1/sms/task/" + id)
	require.Equal(t, "rejected", got.Data("reason"))
	require.Equal(t, "E7", got.Data("error_code"))
	require.Equal(t, "no signal", got.Data("result"))
}

func TestReportBatchAnswersEachItem(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 3 {
		s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","on_unknown":"hold"}`)
	}
	c := s.Get("/api/v1/sms/tasks/pending?app_id=a").List()
	got := s.Post("/api/v1/sms/report/batch", fmt.Sprintf(`{"app_id":"a","items":[
		{"task_id":%q,"status":2}, {"task_id":%q,"outcome":"unknown"}, {"task_id":%q,"outcome":"released","retry_after_seconds":60},
		{"task_id":"nope","status":2}, {"task_id":%q,"status":7}, {"task_id":%q,"status":3}]}`,
		c[0]["task_id"], c[1]["task_id"], c[2]["task_id"], c[0]["task_id"], c[0]["task_id"]))
	require.Equal(t, 200, got.Status, got.Text)
	var seen []string
	for _, item := range got.Data("items").([]any) {
		m := item.(map[string]any)
		state := ""
		if d, ok := m["data"].(map[string]any); ok {
			state = d["state"].(string)
		}
		seen = append(seen, fmt.Sprint(m["code"], " ", state))
	}
	require.Equal(t, []string{"200 succeeded", "200 held", "200 scheduled", "404 ", "400 ", "409 "}, seen, got.Text)
}

func TestCallerReachesOnlyItsOwnTasks(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	phone := s.NewCaller("phone", "sender", "vip")
	id := ann.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).Data("task_id").(string)
	require.Equal(t, 200, ann.Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 404, bob.Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 404, bob.Post("/api/v1/sms/task/"+id+"/cancel", "").Status)
	require.Equal(t, 404, bob.Get("/api/v1/sms/by-key/k").Status)
	require.NotEqual(t, id, bob.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).Data("task_id"))
	require.Equal(t, 403, ann.Get("/api/v1/sms/tasks/pending?app_id=a").Status)
	require.Equal(t, 403, phone.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Status)
	require.Equal(t, 403, phone.Get("/api/v1/sms/tasks/pending?app_id=a").Status, "not a queue of this sender")
	require.Equal(t, 200, phone.Get("/api/v1/sms/tasks/pending?app_id=a&queue=vip").Status)
	require.Equal(t, 403, ann.Do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "t", "Ce-Type", "x").Status)
	require.Equal(t, 401, (&cluster.Client{T: t, URL: s.URL, User: "ann", Password: "wrong"}).Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 200, s.Get("/api/v1/sms/task/"+id).Status, "an admin sees all")
}

func TestWaitingClaimSendsNoStatementsAndWakes(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	empty := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=1")
	before := s.LastStatement()
	got := <-empty
	require.Equal(t, 200, got.Status)
	require.Empty(t, got.List())
	require.Equal(t, before, s.LastStatement())
	woken := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	cluster.RequireClaimed(t, woken, 20*time.Second, s.SubmitTo(task.DefaultQueue))
}
