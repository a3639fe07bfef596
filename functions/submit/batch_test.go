package submit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// longestSubmit returns an item whose fields have the greatest length that is accepted.
func longestSubmit(n int) string {
	content := "name=x&rest="
	content += strings.Repeat("%E4%BD%A0", (4000-len(content))/9)
	content += strings.Repeat("x", 4000-len(content))
	return fmt.Sprintf(`{"phone_number":"+86 138-0013-8000","content":%q,"use_template":true,"template_name":"%s","source":"%s","priority":9,`+
		`"ttl_seconds":31622400,"max_retries":10,"on_unknown":"resend","queue":"%s","callback_url":"%s","metadata":{"m":"%s"},"idempotency_key":"%s"}`,
		content, strings.Repeat("\\ud83d\\ude00", 100), strings.Repeat("\\ud83d\\ude00", 50), strings.Repeat("q", 63),
		"https://93.184.215.14/"+strings.Repeat("c", 2000-22), strings.Repeat("m", 4096-8), fmt.Sprintf("%0255d", n))
}

func TestBatchOfLongestItemsIsAccepted(t *testing.T) {
	t.Parallel()
	s, _ := cluster.StartServer(t, sandbox.NewDatabase(t)) // another process, built without the race detector, which makes reading megabytes slow
	s.Exec(`insert into sms_templates (template_name, template_content) values (repeat('😀', 100), 'hi {{name}}')`)
	items := make([]string, 1000)
	for i := range items {
		items[i] = longestSubmit(i)
	}
	response := s.Post("/api/v1/sms/send/batch", `{"items":[`+strings.Join(items, ",")+`]}`)
	require.Equal(t, 200, response.Status, "%.300s", response.Text)
	for i, item := range response.Data("items").([]any) {
		require.EqualValues(t, 200, item.(map[string]any)["code"], "item %d of %d bytes: %v", i, len(items[i]), item)
	}
	require.Equal(t, 1000, s.Count(`select count(*) from tasks`))
}

// In a batch of tasks, and in a batch of reports, a bad item does not affect the other items.
func TestBadBatchItemFailsAlone(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	bad := []string{`null`, `1`, `"x"`, `[]`, `{}`, `{"a":1}`, `{"phone_number":"\u0000"}`, `{"\ud800":1}`, strings.Repeat("[", 30) + strings.Repeat("]", 30)}
	items := []string{`{"phone_number":"13800138000","content":"first"}`}
	items = append(items, bad...)
	items = append(items, `{"phone_number":"13800138000","content":"last"}`)
	response := s.Post("/api/v1/sms/send/batch", `{"items":[`+strings.Join(items, ",")+`]}`).RequireOK()
	sent := response.Data("items").([]any)
	require.Len(t, sent, len(items))
	last := len(items) - 1
	items[0], items[last] = `{"task_id":"01890000-0000-7000-8000-000000000000","status":3}`, `{"task_id":"01890000-0000-7000-8000-000000000001","status":3}`
	response = s.Post("/api/v1/sms/report/batch", `{"app_id":"a","items":[`+strings.Join(items, ",")+`]}`).RequireOK()
	reported := response.Data("items").([]any)
	for i, item := range items {
		want := [2]int{400, 400}
		if i == 0 || i == last {
			want = [2]int{200, 404}
		}
		require.EqualValues(t, want[0], sent[i].(map[string]any)["code"], "%s: %v", item, sent[i])
		require.EqualValues(t, want[1], reported[i].(map[string]any)["code"], "%s: %v", item, reported[i])
	}
	require.Equal(t, 2, s.Count(`select count(*) from tasks`))
	require.Equal(t, len(items), s.Count(`select count(*) from receive_logs`), "each item is in the request log")
}
