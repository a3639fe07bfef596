package submit_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

func TestIDsAreStrings(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	template := s.Post("/api/v1/admin/template", `{"template_name":"code","template_content":"code {code}"}`)
	require.Equal(t, "1", template.Data("id"))
	for path, body := range map[string]string{
		"default-sms": `{"phone_number":"13900139000","content":"x"}`, "blocked-words": `{"word":"casino"}`, "callers": `{"name":"shop","roles":["submitter"]}`,
	} {
		created := s.Post("/api/v1/admin/"+path, body)
		require.IsType(t, "", created.Data("id"), created.Text)
	}
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":"1","params":{"code":1},"idempotency_key":"k"}`)
	require.Equal(t, "code 1", sent.Data("final_content"), sent.Text)
	claimed := s.Get("/api/v1/sms/tasks/pending?app_id=a").List()[0]
	require.IsType(t, "", claimed["claim_id"])
	seen := s.Get("/api/v1/admin/tasks/" + sent.Data("task_id").(string))
	require.Equal(t, claimed["claim_id"], seen.Data("task").(map[string]any)["claim_id"])
	require.Equal(t, "0", seen.Data("task").(map[string]any)["caller_id"])
	for _, form := range []string{"%q", "%s"} { // the claim_id as it was returned, and as a number
		s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","claim_id":`+form+`,"status":2}`, claimed["task_id"], claimed["claim_id"])).RequireOK()
	}
	require.Equal(t, 400, s.Post("/api/v1/sms/report", `{"task_id":"x","app_id":"a","claim_id":"-1","status":2}`).Status)
	page := s.Get("/api/v1/admin/actions?limit=1")
	s.Get("/api/v1/admin/actions?limit=1&after=" + page.Data("next_after").(string)).RequireOK()
}

func TestTemplateIDIsANumberInFingerprints(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"code","template_content":"code {code}"}`)
	first := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":1,"params":{"code":1},"idempotency_key":"k"}`).RequireOK()
	stored, err := task.Fingerprint(map[string]any{"phone_number": "13800138000", "template_id": 1, "params": map[string]any{"code": 1}})
	require.NoError(t, err)
	require.Equal(t, 1, s.Count(`select count(*) from submission_keys where fingerprint = $1`, stored), "the fingerprint has the id as a JSON number, as it had before ids were strings")
	again := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","template_id":"1","params":{"code":1},"idempotency_key":"k"}`)
	require.Equal(t, first.Data("task_id"), again.Data("task_id"), again.Text)
}
