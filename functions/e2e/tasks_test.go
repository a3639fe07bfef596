package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestTaskFromSubmitToFinalState(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"您的验证码是123456","source":"system_a"}`).RequireOK()
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
	s.Post("/api/v1/sms/report", report).RequireOK()
	again := s.Post("/api/v1/sms/report", report)
	require.Equal(t, 200, again.Status)
	require.Equal(t, true, again.Data("already"))

	got := s.Get("/api/v1/sms/task/" + id)
	require.EqualValues(t, 2, got.Data("status"))
	require.Equal(t, "succeeded", got.Data("state"))
	require.True(t, strings.HasSuffix(got.Data("sent_at").(string), "Z"), "times are UTC")
}

func TestCallerReachesOnlyItsOwnTasks(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	phone := s.NewCaller("phone", "sender", "vip")
	id := ann.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).Data("task_id").(string)
	ann.Get("/api/v1/sms/task/" + id).RequireOK()
	require.Equal(t, 404, bob.Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 404, bob.Post("/api/v1/sms/task/"+id+"/cancel", "").Status)
	require.Equal(t, 404, bob.Get("/api/v1/sms/by-key/k").Status)
	require.NotEqual(t, id, bob.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).Data("task_id"))
	require.Equal(t, 403, ann.Get("/api/v1/sms/tasks/pending?app_id=a").Status)
	require.Equal(t, 403, phone.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Status)
	require.Equal(t, 403, phone.Get("/api/v1/sms/tasks/pending?app_id=a").Status, "not a queue of this sender")
	phone.Get("/api/v1/sms/tasks/pending?app_id=a&queue=vip").RequireOK()
	require.Equal(t, 403, ann.Do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "t", "Ce-Type", "x").Status)
	require.Equal(t, 401, (&cluster.Client{T: t, URL: s.URL, User: "ann", Password: "wrong"}).Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 200, s.Get("/api/v1/sms/task/"+id).Status, "an admin sees all")
}
