package claim_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// pauseQueue pauses the queue default; the zero time means until it is resumed.
func pauseQueue(s *cluster.Client, until time.Time) cluster.Reply {
	s.T.Helper()
	end := ""
	if !until.IsZero() {
		end = fmt.Sprintf(`"until":%q,`, until.Format(time.RFC3339Nano))
	}
	return s.Post(cluster.AdminPath+"queues/default/pause", `{`+end+`"reason":"the gateway is down"}`).RequireOK()
}

func resumeQueue(s *cluster.Client) cluster.Reply {
	s.T.Helper()
	return s.Post(cluster.AdminPath+"queues/default/resume", `{"reason":"it is up"}`).RequireOK()
}

// queueInfo returns the queue default of the list of queues, or nil.
func queueInfo(s *cluster.Client) map[string]any {
	s.T.Helper()
	for _, q := range s.Get(cluster.AdminPath + "queues").Data("queues").([]any) {
		if q.(map[string]any)["queue"] == task.DefaultQueue {
			return q.(map[string]any)
		}
	}
	return nil
}

func TestQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.SubmitTo(task.DefaultQueue)
	paused := pauseQueue(s, time.Time{})
	require.Equal(t, "admin", paused.Data("paused_by"))
	require.Equal(t, true, paused.Data("by_hand"))
	require.Nil(t, paused.Data("until"))
	require.Contains(t, s.Get("/api/v1/sms/tasks/pending?app_id=a").RequireOK().Text, `"data":[]`)
	info := queueInfo(s)
	require.EqualValues(t, 1, info["pending_new_tasks"])
	require.Equal(t, "the gateway is down", info["pause"].(map[string]any)["reason"])

	require.EqualValues(t, 1, resumeQueue(s).Data("pending_tasks"))
	require.Nil(t, queueInfo(s)["pause"])
	require.Equal(t, id, s.Get("/api/v1/sms/tasks/pending?app_id=a").List()[0]["task_id"])
	again := s.Post(cluster.AdminPath+"queues/default/resume", `{"reason":"x"}`)
	require.Equal(t, 404, again.Status)
	require.Equal(t, "queue default is not paused", again.Body["message"])
}

func TestResponseToBadPauseNamesBadFields(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	tooFar := time.Now().AddDate(1, 1, 0).Format(time.RFC3339)
	for body, fields := range map[string][]string{
		`{}`:                            {"reason"},
		`{"reason":" "}`:                {"reason"},
		`{"reason":"x","until":"soon"}`: {"until"},
		`{"reason":"x","until":"` + tooFar + `"}`:                                             {"until"},
		`{"reason":"` + strings.Repeat("长", 501) + `","until":"2001-01-01T00:00:00Z","by":1}`: {"by", "reason", "until"},
	} {
		got := s.Post(cluster.AdminPath+"queues/default/pause", body)
		require.Equal(t, 400, got.Status, body)
		require.ElementsMatch(t, fields, got.Fields(), body)
	}
	for _, name := range []string{"a%20b", "%00", strings.Repeat("q", 64), "%E9%98%9F"} {
		require.Equal(t, 404, s.Post(cluster.AdminPath+"queues/"+name+"/pause", `{"reason":"x"}`).Status, name)
		require.Equal(t, 404, s.Post(cluster.AdminPath+"subscribe-templates/"+name+"/resume", `{"reason":"x"}`).Status, name)
	}
	require.Zero(t, s.Count(`select count(*) from queue_pauses`))
}

// Without NATS, a waiting claim wakes when the pause expires, when the queue is resumed, and when sweep finds a resume whose wake-up
// was lost.
func TestWaitingClaimWakesWhenPauseEnds(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const wait = "/api/v1/sms/tasks/pending?app_id=a&limit=1&wait=30"
	id := s.SubmitTo(task.DefaultQueue)
	until := time.Now().Add(3 * time.Second)
	pauseQueue(s, until)
	waiting := s.StartWaiting(wait)
	require.True(t, time.Now().Before(until))
	cluster.RequireClaimed(t, waiting, time.Until(until)+2*time.Second, id)
	require.False(t, time.Now().Before(until), "not before the pause ends")

	pauseQueue(s, time.Time{})
	id, waiting = s.SubmitTo(task.DefaultQueue), s.StartWaiting(wait)
	resumeQueue(s)
	cluster.RequireClaimed(t, waiting, 2*time.Second, id)

	pauseQueue(s, time.Time{})
	id, waiting = s.SubmitTo(task.DefaultQueue), s.StartWaiting(wait)
	s.Exec(`update queue_pauses set until = now()`) // as a resume does, but without its wake-up
	require.Equal(t, 204, s.Tick("sweep").Status)
	cluster.RequireClaimed(t, waiting, 2*time.Second, id)
	require.Zero(t, s.Count(`select count(*) from queue_pauses`))
}

func TestResumeWakesClaimInAnotherProcess(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	claims, admin, submit := c.At(c.Start("claim")), c.At(c.Start("admin")), c.At(c.Start("submit"))
	id := submit.SubmitTo(task.DefaultQueue)
	pauseQueue(admin, time.Time{})
	waiting := claims.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	resumeQueue(admin)
	cluster.RequireClaimed(t, waiting, 2*time.Second, id)
}

// A claim begins to wait before the pause, so its process has not read when the pause ends. All other processes are killed. The schedule
// in NATS wakes a new sweep, which ends the pause and wakes the claim.
func TestScheduleInNATSEndsPauseAfterCrash(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	claims, admin := c.At(c.Start("claim")), c.At(c.Start("admin"))
	trigger := c.StartTrigger(c.Start("sweep"))
	require.NoError(t, trigger.WaitFor(t.Context(), `"triggering"`))
	waiting := claims.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	until := time.Now().Add(6 * time.Second)
	pauseQueue(admin, until)
	wake, err := c.JetStream().Stream(t.Context(), "WAKE")
	require.NoError(t, err)
	cluster.Eventually(t, func() bool {
		info, err := wake.Info(t.Context(), jetstream.WithSubjectFilter("sched.>"))
		return err == nil && slices.ContainsFunc(slices.Collect(maps.Keys(info.State.Subjects)), func(name string) bool { return !strings.HasSuffix(name, ".tick") })
	})
	for _, name := range []string{"admin", "sweep", "trigger"} {
		require.NoError(t, c.Process(name).Kill())
	}
	// A task whose submit process died after the commit, before it published a wake-up.
	id := task.NewID()
	c.Admin.Exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
		values ($1, 0, 'default', 5, 3, 0, '13800138000', 'x')`, id)
	c.Admin.Exec(`insert into task_live (id, state, priority, max_retries, on_unknown, queue) values ($1, 1, 5, 3, 0, 'default')`, id)
	c.StartTrigger(c.Start("sweep"))
	cluster.RequireClaimed(t, waiting, time.Until(until)+3*time.Second, id.String())
	require.False(t, time.Now().Before(until), "not before the pause ends")
}

func TestPausedTemplateIsListedAndResumed(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason) values ('tmpl/1 预订', 0, 3, now(), '47003: argument invalid')`)
	templates := s.Get(cluster.AdminPath + "subscribe-templates").Data("templates").([]any)
	require.Len(t, templates, 1)
	shown := templates[0].(map[string]any)
	require.NotEmpty(t, shown["paused_at"])
	require.Subset(t, shown, map[string]any{"template_id": "tmpl/1 预订", "strikes": 3.0, "caller_id": "0", "caller_name": "admin"})

	resume := cluster.AdminPath + "subscribe-templates/tmpl%2F1%20%E9%A2%84%E8%AE%A2/resume"
	require.Equal(t, []string{"reason"}, s.Post(resume, `{}`).Fields())
	require.Equal(t, []string{"caller_id"}, s.Post(resume, `{"reason":"corrected","caller_id":-1}`).Fields())
	require.Equal(t, 404, s.Post(resume, `{"reason":"corrected","caller_id":"7"}`).Status, "the template is paused for another caller")
	require.EqualValues(t, 0, s.Post(resume, `{"reason":"corrected","caller_id":"0"}`).RequireOK().Data("due_tasks"))
	require.Empty(t, s.Get(cluster.AdminPath+"subscribe-templates").Data("templates"))
	require.Equal(t, 404, s.Post(resume, `{"reason":"corrected"}`).Status)
}
