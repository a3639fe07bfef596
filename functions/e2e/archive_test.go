package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// age puts a finished task 100 days back and gives its id of then.
func age(s *server, id string) string {
	then := task.NewID()
	floor := task.IDFloor(time.Now().AddDate(0, 0, -100))
	copy(then[:8], floor[:8])
	for _, sql := range []string{
		`update tasks set id = $2, created_at = created_at - interval '100 days' where id = $1`,
		`update task_done set id = $2, reported_at = reported_at - interval '99 days' where id = $1`,
		`update submission_keys set id = $2 where id = $1`,
	} {
		s.exec(sql, id, then)
	}
	return then.String()
}

// finishTask submits a task with a key, sends it and puts it back in time.
func finishTask(s *server, key string, status int) string {
	sent := s.post("/api/v1/sms/send", submission(key, "hi"))
	require.Equal(s.t, 200, sent.status, sent.text)
	require.Len(s.t, s.get("/api/v1/sms/tasks/pending?app_id=app").list(), 1)
	reported := s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":%d}`, sent.data("task_id"), status))
	require.Equal(s.t, 200, reported.status, reported.text)
	return age(s, sent.data("task_id").(string))
}

// runMaintenance has sweep do all that is to be done now and then, a moment at a time.
func runMaintenance(s *server) {
	s.t.Helper()
	for more := 1; more > 0; more = s.count(`select count(*) from upkeep where what = 'house' and begun_at = '-infinity'`) {
		require.Equal(s.t, 204, s.tick("sweep").status)
	}
}

func submission(key, content string) string {
	return fmt.Sprintf(`{"phone_number":"13800138000","content":%q,"idempotency_key":%q}`, content, key)
}

// archive runs the command and returns what it printed.
func archive(t *testing.T, url string, args ...string) (int, string) {
	t.Helper()
	bin := binary(t)
	p := startProcess(t, bin, append(sandbox.RolesEnv(), "DATABASE_URL="+url), append([]string{"archive"}, args...)...)
	exited(t, p)
	return p.ExitCode(), p.Output()
}

func TestAnArchivedTaskIsAnsweredAsEverAndSaysSo(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	process := startProcess(t, binary(t), settings(url))
	s := (&server{t: t, url: address(t, process), user: "admin", password: "secret"}).connect(url)
	sent, failed := finishTask(s, "first", 2), finishTask(s, "second", 3)
	live := s.post("/api/v1/sms/send", submission("third", "hi"))
	before := s.get("/api/v1/admin/statistics").text
	counts := before[:strings.Index(before, "oldest_pending")]

	code, told := archive(t, url, "--dry-run")
	require.Zero(t, code, told)
	require.Contains(t, told, "would move 2 tasks that ended before ")
	require.Zero(t, s.count(`select count(*) from archived_tasks`))
	code, told = archive(t, url)
	require.Zero(t, code, told)
	require.Contains(t, told, "moved 2 tasks that ended before ")
	require.Equal(t, 2, s.count(`select count(*) from archived_tasks`))
	require.Equal(t, 1, s.count(`select count(*) from tasks`))

	for key, id := range map[string]string{"first": sent, "second": failed} {
		again := s.post("/api/v1/sms/send", submission(key, "hi"))
		require.Equal(t, 200, again.status, again.text)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
		require.Equal(t, id, again.data("task_id"))
		require.Equal(t, true, again.data("archived"))
		require.Equal(t, map[string]string{"first": "succeeded", "second": "failed"}[key], again.data("state"))
		require.Equal(t, "hi", again.data("final_content"))
		require.Equal(t, 422, s.post("/api/v1/sms/send", submission(key, "something else")).status)
		for _, path := range []string{"/api/v1/sms/task/" + id, "/api/v1/sms/by-key/" + key} {
			got := s.get(path)
			require.Equal(t, 200, got.status, got.text)
			require.Equal(t, id, got.data("task_id"))
			require.Equal(t, true, got.data("archived"))
			require.Equal(t, "13800138000", got.data("phone_number"))
		}
	}
	require.NotContains(t, s.get("/api/v1/sms/by-key/third").text, "archived")
	require.Equal(t, 200, s.get("/api/v1/admin/tasks/"+failed).status)
	require.Equal(t, 409, s.post("/api/v1/admin/tasks/"+failed+"/retry", `{}`).status)
	require.Equal(t, 409, s.post("/api/v1/sms/task/"+failed+"/cancel", ``).status)
	late := s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, failed))
	require.Equal(t, 409, late.status)
	require.Equal(t, "stale_claim", late.body["error"])
	already := s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"app","status":2}`, sent))
	require.Equal(t, 200, already.status)
	require.Equal(t, true, already.data("already"))
	other := s.caller("somebody-else", "submitter")
	require.Equal(t, 404, other.get("/api/v1/sms/task/"+sent).status, "another caller's task does not exist")

	after := s.get("/api/v1/admin/statistics").text
	require.Contains(t, after, counts)
	require.Equal(t, 200, s.get("/api/v1/sms/task/"+live.data("task_id").(string)).status)
}

func TestArchivedMessagesAreAnsweredAsEverAndSaySo(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	process := startProcess(t, binary(t), settings(url))
	s := (&server{t: t, url: address(t, process), user: "admin", password: "secret"}).connect(url)
	const first = `{"client_msg_id":"first","to":"orders.paid","data":{"order":7}}`
	sent := s.post("/api/v1/messages", first)
	require.Equal(t, 200, sent.status, sent.text)
	path := "/api/v1/messages/" + sent.data("server_msg_id").(string)
	useUp(s, message.Sent, sent.data("server_msg_id"))
	require.Equal(t, 204, s.post(path+"/received", `{"consumer":"points"}`).status)
	s.exec(`update message_done set finished_at = finished_at - interval '100 days'`)
	const order = `{"app_id":"app","template_id":"tmpl","template_type":"BOOKING_CONFIRM","business_type":"course_booking","business_id":123,"receiver_user_id":9,
		"receiver_openid":"openid","message_data":{"thing1":{"value":%q}}}`
	ordered := s.post("/api/v1/subscribe/record", fmt.Sprintf(order, "Tea"))
	require.Equal(t, 200, ordered.status, ordered.text)
	settled := s.post(fmt.Sprintf("/api/v1/subscribe/%v/status", ordered.data("id")), fmt.Sprintf(`{"app_id":"app","claim_id":%v,"send_status":1}`, ordered.data("claim_id")))
	require.Equal(t, 200, settled.status, settled.text)
	then := age(s, ordered.data("task_id").(string))
	s.exec(`update subscribe_message_sends set task_id = $1`, then)
	s.exec(`update subscribe_message_logs set task_id = $1, updated_at = now() - interval '99 days', send_time = now() - interval '99 days'`, then)

	code, printed := archive(t, url, "--dry-run")
	require.Zero(t, code, printed)
	for _, table := range []string{"tasks", "messages", "subscribe_message_logs"} {
		require.Contains(t, printed, "would move 1 "+table+" that ended before ")
	}
	require.Contains(t, printed, "would move 0 operator_actions\nwould delete 0 webhook_deliveries\nwould delete 0 webhook_events\nwould delete 0 alerts\nwould delete 0 dead_letters\n")
	s.exec(`update upkeep set begun_at = '-infinity'`)
	runMaintenance(s)
	require.Equal(t, []int{0, 0, 0}, []int{s.count(`select count(*) from messages`), s.count(`select count(*) from subscribe_message_logs`), s.count(`select count(*) from tasks`)})
	metrics := metricsOf(t, s.url)
	for _, table := range []string{"tasks", "messages", "subscribe_message_logs"} {
		require.Contains(t, metrics, fmt.Sprintf("sendonce_archived_rows_total{table=%q} 1\n", table))
	}
	require.Contains(t, process.Output(), `"archived":{`)

	for _, found := range []reply{s.get(path), s.get("/api/v1/messages/by-key/first"), s.post("/api/v1/messages", first)} {
		require.Equal(t, 200, found.status, found.text)
		require.Equal(t, []any{sent.data("server_msg_id"), "received", true}, []any{found.data("server_msg_id"), found.data("state"), found.data("archived")})
	}
	require.Equal(t, 422, s.post("/api/v1/messages", `{"client_msg_id":"first","to":"orders.paid","data":{"order":8}}`).status)
	require.Equal(t, 204, s.post(path+"/received", `{"consumer":"late"}`).status)
	require.Equal(t, 409, s.post(path+"/redrive", ``).status)

	again := s.post("/api/v1/subscribe/record", fmt.Sprintf(order, "Coffee"))
	require.Equal(t, 200, again.status, again.text)
	require.Equal(t, []any{ordered.data("id"), true, true, true}, []any{again.data("id"), again.data("skipped"), again.data("data_differs"), again.data("archived")})
	log := s.get(fmt.Sprintf("/api/v1/subscribe/%v", ordered.data("id")))
	require.Equal(t, 200, log.status, log.text)
	require.Equal(t, true, log.data("archived"))
	require.Len(t, log.data("sends"), 1)
	require.Equal(t, true, s.get("/api/v1/subscribe/sent?business_type=course_booking&business_id=123&template_type=BOOKING_CONFIRM&receiver_user_id=9").data("sent"))
	require.Len(t, s.get("/api/v1/subscribe/logs?business_type=course_booking&business_id=123").data("items"), 1)
}

func TestTheSafetyTickArchivesWithoutBeingAsked(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	bin := binary(t)
	s := (&server{t: t, url: address(t, startProcess(t, bin, settings(url, "RETENTION_DAYS=0"))), user: "admin", password: "secret"}).connect(url)
	finishTask(s, "first", 2)
	last := s.text(`select to_char(date_trunc('month', now() at time zone 'UTC') - interval '3 months', 'YYYY-MM-DD')`)
	next := s.text(`select to_char($1::date + interval '1 month', 'YYYY-MM-DD')`, last)
	s.exec(fmt.Sprintf(`create table send_logs_old partition of send_logs for values from ('%s 00:00:00+00') to ('%s 00:00:00+00')`, last, next))
	const kept = `select count(*) from pg_class where relname = 'send_logs_old'`
	runMaintenance(s)
	require.Equal(t, 0, s.count(kept), "logs have a setting of their own")
	require.Equal(t, 1, s.count(`select count(*) from task_done`), "0 keeps for ever")

	s.url = address(t, startProcess(t, bin, settings(url)))
	require.Equal(t, 204, s.tick("sweep").status)
	require.Equal(t, 1, s.count(`select count(*) from task_done`), "a fresh instance does not do again what another just did")
	s.exec(`update upkeep set begun_at = begun_at - interval '10 minutes'`)
	runMaintenance(s)
	require.Equal(t, 0, s.count(`select count(*) from task_done`))
	require.Equal(t, 1, s.count(`select count(*) from archived_tasks`))
}

func TestTheWordArchiveRefusesWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	for want, args := range map[string][]string{
		`--before must be a date such as 2026-01-31, not \"yesterday\"`: {"--before", "yesterday"},
		`not \"0001-01-01\"`:                  {"--before", "0001-01-01"},
		`archive takes no \"2026-01-31\"`:     {"2026-01-31"},
		"flag provided but not defined: -dry": {"--dry"},
	} {
		code, told := archive(t, url, args...)
		require.Equal(t, 1, code, told)
		require.Contains(t, told, want)
	}
	code, told := archive(t, "", "--dry-run")
	require.Equal(t, 1, code, told)
	require.Contains(t, told, "DATABASE_URL is not set")
	code, told = archive(t, url, "--before", "2020-01-31")
	require.Zero(t, code, told)
	require.Contains(t, told, "moved 0 tasks\nmoved 0 messages\nmoved 0 subscribe_message_logs\n")
}
