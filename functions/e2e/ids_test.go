package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestEveryIDIsAnsweredAsAString(t *testing.T) {
	t.Parallel()
	s := serve(t)
	template := s.post("/api/v1/admin/template", `{"template_name":"code","template_content":"code {code}"}`)
	require.Equal(t, "1", template.data("id"))
	for _, path := range []string{"default-sms", "blocked-words", "callers"} {
		made := s.post("/api/v1/admin/"+path, map[string]string{
			"default-sms": `{"phone_number":"13900139000","content":"x"}`, "blocked-words": `{"word":"casino"}`, "callers": `{"name":"shop","roles":["submitter"]}`,
		}[path])
		require.IsType(t, "", made.data("id"), made.text)
	}
	sent := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":"1","params":{"code":1},"idempotency_key":"k"}`)
	require.Equal(t, "code 1", sent.data("final_content"), sent.text)
	claimed := s.get("/api/v1/sms/tasks/pending?app_id=a").list()[0]
	require.IsType(t, "", claimed["claim_id"])
	seen := s.get("/api/v1/admin/tasks/" + sent.data("task_id").(string))
	require.Equal(t, claimed["claim_id"], seen.data("task").(map[string]any)["claim_id"])
	require.Equal(t, "0", seen.data("task").(map[string]any)["caller_id"])
	for _, form := range []string{"%q", "%s"} { // as it was answered, and as a number
		reported := s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","claim_id":`+form+`,"status":2}`, claimed["task_id"], claimed["claim_id"]))
		require.Equal(t, 200, reported.status, reported.text)
	}
	require.Equal(t, 400, s.post("/api/v1/sms/report", `{"task_id":"x","app_id":"a","claim_id":"-1","status":2}`).status)
	page := s.get("/api/v1/admin/actions?limit=1")
	older := s.get("/api/v1/admin/actions?limit=1&after=" + page.data("next_after").(string))
	require.Equal(t, 200, older.status, older.text)
}

func TestATemplatesIDCountsAsANumberInAFingerprint(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.post("/api/v1/admin/template", `{"template_name":"code","template_content":"code {code}"}`)
	first := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":1,"params":{"code":1},"idempotency_key":"k"}`)
	require.Equal(t, 200, first.status, first.text)
	stored, err := task.Fingerprint(map[string]any{"phone_number": "13800138000", "template_id": 1, "params": map[string]any{"code": 1}})
	require.NoError(t, err)
	require.Equal(t, 1, s.count(`select count(*) from submission_keys where fingerprint = $1`, stored), "as before ids became strings")
	again := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":"1","params":{"code":1},"idempotency_key":"k"}`)
	require.Equal(t, first.data("task_id"), again.data("task_id"), again.text)
}
