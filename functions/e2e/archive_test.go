package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// age makes a finished task 100 days old, and returns its new id: an id begins with the time.
func age(s *cluster.Client, id string) string {
	old := task.NewID()
	floor := task.IDFloor(time.Now().AddDate(0, 0, -100))
	copy(old[:8], floor[:8])
	for _, sql := range []string{
		`update tasks set id = $2, created_at = created_at - interval '100 days' where id = $1`,
		`update task_done set id = $2, reported_at = reported_at - interval '99 days' where id = $1`,
		`update submission_keys set id = $2 where id = $1`,
	} {
		s.Exec(sql, id, old)
	}
	return old.String()
}

// finishTask submits a task with a key, reports it and makes it 100 days old.
func finishTask(s *cluster.Client, key string, status int) string {
	sent := s.Post("/api/v1/sms/send", submission(key, "hi")).RequireOK()
	require.Len(s.T, s.Get("/api/v1/sms/tasks/pending?app_id=app").List(), 1)
	s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":%d}`, sent.Data("task_id"), status)).RequireOK()
	return age(s, sent.Data("task_id").(string))
}

func submission(key, content string) string {
	return fmt.Sprintf(`{"phone_number":"13800138000","content":%q,"idempotency_key":%q}`, content, key)
}

// archive runs the command archive, and returns its exit code and its output.
func archive(t *testing.T, url string, args ...string) (int, string) {
	t.Helper()
	bin := cluster.Binary(t)
	p := cluster.StartProcess(t, bin, append(sandbox.RolesEnv(), "DATABASE_URL="+url), append([]string{"archive"}, args...)...)
	cluster.WaitExit(t, p)
	return p.ExitCode(), p.Output()
}

func TestArchivedTaskIsReadLikeALiveOne(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	s, _ := cluster.StartServer(t, url)
	sent, failed := finishTask(s, "first", 2), finishTask(s, "second", 3)
	live := s.Post("/api/v1/sms/send", submission("third", "hi"))
	before := s.Get("/api/v1/admin/statistics").Text
	counts := before[:strings.Index(before, "oldest_pending")]

	code, output := archive(t, url, "--dry-run")
	require.Zero(t, code, output)
	require.Contains(t, output, "would move 2 tasks that ended before ")
	require.Zero(t, s.Count(`select count(*) from archived_tasks`))
	code, output = archive(t, url)
	require.Zero(t, code, output)
	require.Contains(t, output, "moved 2 tasks that ended before ")
	require.Equal(t, 2, s.Count(`select count(*) from archived_tasks`))
	require.Equal(t, 1, s.Count(`select count(*) from tasks`))

	for key, id := range map[string]string{"first": sent, "second": failed} {
		again := s.Post("/api/v1/sms/send", submission(key, "hi")).RequireOK()
		require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
		require.Equal(t, id, again.Data("task_id"))
		require.Equal(t, true, again.Data("archived"))
		require.Equal(t, map[string]string{"first": "succeeded", "second": "failed"}[key], again.Data("state"))
		require.Equal(t, "hi", again.Data("final_content"))
		require.Equal(t, 422, s.Post("/api/v1/sms/send", submission(key, "something else")).Status)
		for _, path := range []string{"/api/v1/sms/task/" + id, "/api/v1/sms/by-key/" + key} {
			got := s.Get(path).RequireOK()
			require.Equal(t, id, got.Data("task_id"))
			require.Equal(t, true, got.Data("archived"))
			require.Equal(t, "13800138000", got.Data("phone_number"))
		}
	}
	require.NotContains(t, s.Get("/api/v1/sms/by-key/third").Text, "archived")
	s.Get("/api/v1/admin/tasks/" + failed).RequireOK()
	require.Equal(t, 409, s.Post("/api/v1/admin/tasks/"+failed+"/retry", `{}`).Status)
	require.Equal(t, 409, s.Post("/api/v1/sms/task/"+failed+"/cancel", ``).Status)
	late := s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, failed))
	require.Equal(t, 409, late.Status)
	require.Equal(t, "stale_claim", late.Body["error"])
	already := s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, sent))
	require.Equal(t, 200, already.Status)
	require.Equal(t, true, already.Data("already"))
	other := s.NewCaller("somebody-else", "submitter")
	require.Equal(t, 404, other.Get("/api/v1/sms/task/"+sent).Status, "another caller's task is not found")

	after := s.Get("/api/v1/admin/statistics").Text
	require.Contains(t, after, counts)
	s.Get("/api/v1/sms/task/" + live.Data("task_id").(string)).RequireOK()
}

func TestArchivedMessagesAreReadLikeLiveOnes(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	s, process := cluster.StartServer(t, url)
	const first = `{"client_msg_id":"first","to":"orders.paid","data":{"order":7}}`
	sent := s.Post("/api/v1/messages", first).RequireOK()
	path := "/api/v1/messages/" + sent.Data("server_msg_id").(string)
	s.ExhaustSends(message.Sent, sent.Data("server_msg_id"))
	require.Equal(t, 204, s.Post(path+"/received", `{"consumer":"points"}`).Status)
	s.Exec(`update message_done set finished_at = finished_at - interval '100 days'`)
	const record = `{"app_id":"app","template_id":"tmpl","template_type":"BOOKING_CONFIRM","business_type":"course_booking","business_id":123,"receiver_user_id":9,
		"receiver_openid":"openid","message_data":{"thing1":{"value":%q}}}`
	recorded := s.Post("/api/v1/subscribe/record", fmt.Sprintf(record, "Tea")).RequireOK()
	s.Post(fmt.Sprintf("/api/v1/subscribe/%v/status", recorded.Data("id")), fmt.Sprintf(`{"app_id":"app","claim_id":%v,"send_status":1}`, recorded.Data("claim_id"))).RequireOK()
	agedID := age(s, recorded.Data("task_id").(string))
	s.Exec(`update subscribe_message_sends set task_id = $1`, agedID)
	s.Exec(`update subscribe_message_logs set task_id = $1, updated_at = now() - interval '99 days', send_time = now() - interval '99 days'`, agedID)

	code, printed := archive(t, url, "--dry-run")
	require.Zero(t, code, printed)
	for _, table := range []string{"tasks", "messages", "subscribe_message_logs"} {
		require.Contains(t, printed, "would move 1 "+table+" that ended before ")
	}
	require.Contains(t, printed, "would move 0 operator_actions\nwould delete 0 webhook_deliveries\nwould delete 0 webhook_events\nwould delete 0 bulk_changes\nwould delete 0 alerts\nwould delete 0 dead_letters\n")
	s.Exec(`update upkeep set begun_at = '-infinity'`)
	s.RunMaintenance()
	require.Equal(t, []int{0, 0, 0}, []int{s.Count(`select count(*) from messages`), s.Count(`select count(*) from subscribe_message_logs`), s.Count(`select count(*) from tasks`)})
	metrics := cluster.Metrics(t, s.URL)
	for _, table := range []string{"tasks", "messages", "subscribe_message_logs"} {
		require.Contains(t, metrics, fmt.Sprintf("sendonce_archived_rows_total{table=%q} 1\n", table))
	}
	require.Contains(t, process.Output(), `"archived":{`)

	for _, found := range []cluster.Reply{s.Get(path), s.Get("/api/v1/messages/by-key/first"), s.Post("/api/v1/messages", first)} {
		require.Equal(t, 200, found.Status, found.Text)
		require.Equal(t, []any{sent.Data("server_msg_id"), "received", true}, []any{found.Data("server_msg_id"), found.Data("state"), found.Data("archived")})
	}
	require.Equal(t, 422, s.Post("/api/v1/messages", `{"client_msg_id":"first","to":"orders.paid","data":{"order":8}}`).Status)
	require.Equal(t, 204, s.Post(path+"/received", `{"consumer":"late"}`).Status)
	require.Equal(t, 409, s.Post(path+"/redrive", ``).Status)

	again := s.Post("/api/v1/subscribe/record", fmt.Sprintf(record, "Coffee")).RequireOK()
	require.Equal(t, []any{recorded.Data("id"), true, true, true}, []any{again.Data("id"), again.Data("skipped"), again.Data("data_differs"), again.Data("archived")})
	log := s.Get(fmt.Sprintf("/api/v1/subscribe/%v", recorded.Data("id"))).RequireOK()
	require.Equal(t, true, log.Data("archived"))
	require.Len(t, log.Data("sends"), 1)
	require.Equal(t, true, s.Get("/api/v1/subscribe/sent?business_type=course_booking&business_id=123&template_type=BOOKING_CONFIRM&receiver_user_id=9").Data("sent"))
	require.Len(t, s.Get("/api/v1/subscribe/logs?business_type=course_booking&business_id=123").Data("items"), 1)
}

func TestArchiveCommandRejectsBadArguments(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	for want, args := range map[string][]string{
		`--before must be a date such as 2026-01-31, not \"yesterday\"`: {"--before", "yesterday"},
		`not \"0001-01-01\"`:                  {"--before", "0001-01-01"},
		`archive takes no \"2026-01-31\"`:     {"2026-01-31"},
		"flag provided but not defined: -dry": {"--dry"},
	} {
		code, output := archive(t, url, args...)
		require.Equal(t, 1, code, output)
		require.Contains(t, output, want)
	}
	code, output := archive(t, "", "--dry-run")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "DATABASE_URL is not set")
	code, output = archive(t, url, "--before", "2020-01-31")
	require.Zero(t, code, output)
	require.Contains(t, output, "moved 0 tasks\nmoved 0 messages\nmoved 0 subscribe_message_logs\n")
}
