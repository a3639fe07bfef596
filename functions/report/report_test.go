package report_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestReportBatchReturnsResultOfEachItem(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 3 {
		s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","on_unknown":"hold"}`)
	}
	c := s.Get("/api/v1/sms/tasks/pending?app_id=a").List()
	got := s.Post("/api/v1/sms/report/batch", fmt.Sprintf(`{"app_id":"a","items":[
		{"task_id":%q,"status":2}, {"task_id":%q,"outcome":"unknown"}, {"task_id":%q,"outcome":"released","retry_after_seconds":60},
		{"task_id":"nope","status":2}, {"task_id":%q,"status":7}, {"task_id":%q,"status":3}]}`,
		c[0]["task_id"], c[1]["task_id"], c[2]["task_id"], c[0]["task_id"], c[0]["task_id"])).RequireOK()
	var seen []string
	for _, m := range got.Items() {
		state := ""
		if d, ok := m["data"].(map[string]any); ok {
			state = d["state"].(string)
		}
		seen = append(seen, fmt.Sprint(m["code"], " ", state))
	}
	require.Equal(t, []string{"200 succeeded", "200 held", "200 scheduled", "404 ", "400 ", "409 "}, seen, got.Text)
}

// A long error_message is not refused: only the length of the whole batch is limited.
func TestBatchOfLongReportsIsAccepted(t *testing.T) {
	t.Parallel()
	s, _ := cluster.StartServer(t, sandbox.NewDatabase(t)) // another process, built without the race detector, which makes reading megabytes slow
	report := fmt.Sprintf(`{"task_id":"01890000-0000-7000-8000-000000000000","status":3,"error_message":%q}`, strings.Repeat("e", 8000))
	response := s.Post("/api/v1/sms/report/batch", `{"app_id":"a","items":[`+strings.Join(slices.Repeat([]string{report}, 1000), ",")+`]}`)
	require.Equal(t, 200, response.Status, "%.300s", response.Text)
	one := s.Post("/api/v1/sms/report/batch", fmt.Sprintf(`{"app_id":"a","items":[{"task_id":"01890000-0000-7000-8000-000000000000","status":3,"error_message":%q}]}`, strings.Repeat("e", 4<<20)))
	require.Equal(t, 200, one.Status, "%.300s", one.Text)
}
