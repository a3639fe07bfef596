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

// makeOld makes a finished task 100 days old, and returns its new id: an id begins with the time of submission.
func makeOld(s *cluster.Client, id string) string {
	oldID := task.NewID()
	floor := task.IDFloor(time.Now().AddDate(0, 0, -100))
	copy(oldID[:8], floor[:8])
	for _, sql := range []string{
		`update tasks set id = $2, created_at = created_at - interval '100 days' where id = $1`,
		`update task_done set id = $2, reported_at = reported_at - interval '99 days' where id = $1`,
		`update submission_keys set id = $2 where id = $1`,
	} {
		s.Exec(sql, id, oldID)
	}
	return oldID.String()
}

// archive runs the command archive, and returns its exit code and its output.
func archive(t *testing.T, url string, args ...string) (int, string) {
	t.Helper()
	bin := cluster.Binary(t)
	p := cluster.StartProcess(t, bin, append(sandbox.RolesEnv(), "DATABASE_URL="+url), append([]string{"archive"}, args...)...)
	cluster.WaitExit(t, p)
	return p.ExitCode(), p.Output()
}

// The tests of shared/store prove which rows are archived. This test proves that the functions find archived tasks and
// messages, and mark them as archived in their responses.
func TestArchivedTasksAndMessagesAreFoundAndMarked(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	s, process := cluster.StartServer(t, url)
	const taskBody = `{"phone_number":"13800138000","content":"hi","idempotency_key":"first"}`
	submitted := s.Post(cluster.SMSPath+"send", taskBody).RequireOK().Data("task_id").(string)
	require.Len(t, s.Get(cluster.SMSPath+"tasks/pending?app_id=app").List(), 1)
	report := fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, submitted)
	s.Post(cluster.SMSPath+"report", report).RequireOK()
	taskID := makeOld(s, submitted)
	const messageBody = `{"client_msg_id":"first","to":"orders.paid","data":{"order":7}}`
	sent := s.Post(cluster.MessagesPath, messageBody).RequireOK()
	path := cluster.MessagesPath + "/" + sent.Data("server_msg_id").(string)
	s.ExhaustSends(message.Sent, sent.Data("server_msg_id"))
	require.Equal(t, 204, s.Post(path+"/received", `{"consumer":"points"}`).Status)
	s.Exec(`update message_done set finished_at = finished_at - interval '100 days'`)
	recorded := s.Post(cluster.SubscribePath+"record", cluster.Recording(123, "")).RequireOK()
	s.Post(recorded.Header.Get("Location")+"/status", fmt.Sprintf(`{"app_id":"app","claim_id":%v,"send_status":1}`, recorded.Data("claim_id"))).RequireOK()
	oldID := makeOld(s, recorded.Data("task_id").(string))
	s.Exec(`update subscribe_message_sends set task_id = $1`, oldID)
	s.Exec(`update subscribe_message_logs set task_id = $1, updated_at = now() - interval '99 days', send_time = now() - interval '99 days'`, oldID)

	code, printed := archive(t, url, "--dry-run")
	require.Zero(t, code, printed)
	archived := map[string]int{"tasks": 2, "messages": 1, "subscribe_message_logs": 1}
	for table, rows := range archived {
		require.Contains(t, printed, fmt.Sprintf("would move %d %s that ended before ", rows, table))
	}
	require.Contains(t, printed, "would move 0 operator_actions\nwould delete 0 webhook_deliveries\nwould delete 0 webhook_events\nwould delete 0 bulk_changes\nwould delete 0 alerts\nwould delete 0 dead_letters\n")
	require.Zero(t, s.Count(`select count(*) from archived_tasks`))
	s.Exec(`update upkeep set begun_at = '-infinity'`)
	s.RunMaintenance()
	metrics := cluster.Metrics(t, s.URL)
	for table, rows := range archived {
		require.Zero(t, s.Count(`select count(*) from `+table), table)
		require.Contains(t, metrics, fmt.Sprintf("sendonce_archived_rows_total{table=%q} %d\n", table, rows))
	}
	require.Contains(t, process.Output(), `"archived":{`)

	for _, found := range []cluster.Reply{s.Get(cluster.SMSPath + "task/" + taskID), s.Get(cluster.SMSPath + "by-key/first"), s.Post(cluster.SMSPath+"send", taskBody)} {
		found.RequireOK()
		require.Equal(t, []any{taskID, "succeeded", true}, []any{found.Data("task_id"), found.Data("state"), found.Data("archived")})
	}
	s.Get(cluster.AdminPath + "tasks/" + taskID).RequireOK()
	require.Equal(t, true, s.Post(cluster.SMSPath+"report", strings.Replace(report, submitted, taskID, 1)).RequireOK().Data("already"))
	require.Equal(t, 404, s.NewCaller("somebody-else", "submitter").Get(cluster.SMSPath+"task/"+taskID).Status, "another caller's task is not found")
	for _, found := range []cluster.Reply{s.Get(path), s.Get(cluster.MessagesPath + "/by-key/first"), s.Post(cluster.MessagesPath, messageBody)} {
		found.RequireOK()
		require.Equal(t, []any{sent.Data("server_msg_id"), "received", true}, []any{found.Data("server_msg_id"), found.Data("state"), found.Data("archived")})
	}
	again := s.Post(cluster.SubscribePath+"record", strings.Replace(cluster.Recording(123, ""), "瑜伽课", "茶", 1)).RequireOK()
	require.Equal(t, []any{recorded.Data("id"), true, true, true}, []any{again.Data("id"), again.Data("skipped"), again.Data("data_differs"), again.Data("archived")})
	log := s.Get(recorded.Header.Get("Location")).RequireOK()
	require.Equal(t, true, log.Data("archived"))
	require.Len(t, log.Data("sends"), 1)
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
