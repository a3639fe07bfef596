package claim_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func pauseQueue(s *cluster.Client, queue string, until time.Time) cluster.Reply {
	s.T.Helper()
	end := ""
	if !until.IsZero() {
		end = fmt.Sprintf(`"until":%q,`, until.Format(time.RFC3339Nano))
	}
	paused := s.Post(cluster.AdminPath+"queues/"+queue+"/pause", `{`+end+`"reason":"the gateway is down"}`)
	require.Equal(s.T, 200, paused.Status, paused.Text)
	return paused
}

func resumeQueue(s *cluster.Client, queue string) cluster.Reply {
	s.T.Helper()
	resumed := s.Post(cluster.AdminPath+"queues/"+queue+"/resume", `{"reason":"it is up"}`)
	require.Equal(s.T, 200, resumed.Status, resumed.Text)
	return resumed
}

// queueInfo returns a queue of the list of queues, or nil.
func queueInfo(s *cluster.Client, name string) map[string]any {
	s.T.Helper()
	got := s.Get(cluster.AdminPath + "queues")
	for _, q := range got.Data("queues").([]any) {
		if q.(map[string]any)["queue"] == name {
			return q.(map[string]any)
		}
	}
	return nil
}

func TestQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.SubmitTo(task.DefaultQueue)
	paused := pauseQueue(s, "default", time.Time{})
	require.Equal(t, "admin", paused.Data("paused_by"))
	require.Equal(t, true, paused.Data("by_hand"))
	require.Nil(t, paused.Data("until"))
	none := s.Get("/api/v1/sms/tasks/pending?app_id=a")
	require.Equal(t, 200, none.Status)
	require.Contains(t, none.Text, `"data":[]`)
	info := queueInfo(s, "default")
	require.EqualValues(t, 1, info["pending_new_tasks"])
	require.Equal(t, "the gateway is down", info["pause"].(map[string]any)["reason"])
	statistics := s.Get(cluster.AdminPath + "statistics").Data("queues").([]any)[0].(map[string]any)
	for name, n := range statistics {
		if name != "oldest_pending_seconds" {
			require.Equal(t, n, info[name], name)
		}
	}

	require.EqualValues(t, 1, resumeQueue(s, "default").Data("pending_tasks"))
	require.Nil(t, queueInfo(s, "default")["pause"])
	require.Equal(t, id, s.Get("/api/v1/sms/tasks/pending?app_id=a").List()[0]["task_id"])
	again := s.Post(cluster.AdminPath+"queues/default/resume", `{"reason":"x"}`)
	require.Equal(t, 404, again.Status)
	require.Equal(t, "queue default is not paused", again.Body["message"])
	actions := s.Get(cluster.AdminPath + "actions?subject=queue/default").Data("items").([]any)
	require.Len(t, actions, 2)
	require.Equal(t, "queue.resume", actions[0].(map[string]any)["action"])
	require.Equal(t, "it is up", actions[0].(map[string]any)["reason"])
}

func TestBadPauseNamesItsFields(t *testing.T) {
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
	for _, queue := range []string{"a%20b", "%00", strings.Repeat("q", 64), "%E9%98%9F"} {
		require.Equal(t, 404, s.Post(cluster.AdminPath+"queues/"+queue+"/pause", `{"reason":"x"}`).Status, queue)
		require.Equal(t, 404, s.Post(cluster.AdminPath+"subscribe-templates/"+queue+"/resume", `{"reason":"x"}`).Status, queue)
	}
	require.Equal(t, 403, s.NewCaller("app", "sender").Post(cluster.AdminPath+"queues/default/pause", `{"reason":"x"}`).Status)
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
	pauseQueue(s, "default", until)
	woken := s.StartWaiting(wait)
	require.True(t, time.Now().Before(until))
	cluster.RequireClaimed(t, woken, time.Until(until)+2*time.Second, id)
	require.False(t, time.Now().Before(until), "not before the pause ends")

	pauseQueue(s, "default", time.Time{})
	id, woken = s.SubmitTo(task.DefaultQueue), s.StartWaiting(wait)
	resumeQueue(s, "default")
	cluster.RequireClaimed(t, woken, 2*time.Second, id)

	pauseQueue(s, "default", time.Time{})
	id, woken = s.SubmitTo(task.DefaultQueue), s.StartWaiting(wait)
	s.Exec(`update queue_pauses set until = now()`) // as a resume does, but without its wake-up
	require.Equal(t, 204, s.Tick("sweep").Status)
	cluster.RequireClaimed(t, woken, 2*time.Second, id)
	require.Zero(t, s.Count(`select count(*) from queue_pauses`))
}

func TestResumeWakesClaimInAnotherProcess(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	claims, admin, submit := c.At(c.Start("claim")), c.At(c.Start("admin")), c.At(c.Start("submit"))
	id := submit.SubmitTo(task.DefaultQueue)
	pauseQueue(admin, "default", time.Time{})
	woken := claims.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	resumeQueue(admin, "default")
	cluster.RequireClaimed(t, woken, 2*time.Second, id)
}

// A claim begins to wait before the pause, so it does not know when the pause ends. All processes that know the end are killed. The
// schedule in NATS wakes a new sweep, which ends the pause and wakes the claim.
func TestSweepEndsPauseAfterOthersWereKilled(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	claims, admin := c.At(c.Start("claim")), c.At(c.Start("admin"))
	trigger := c.StartTrigger(c.Start("sweep"))
	require.NoError(t, trigger.WaitFor(t.Context(), `"triggering"`))
	waiting := claims.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	until := time.Now().Add(6 * time.Second)
	pauseQueue(admin, "default", until)
	wake, err := c.JetStream().Stream(t.Context(), "WAKE")
	require.NoError(t, err)
	cluster.Eventually(t, func() bool {
		info, err := wake.Info(t.Context(), jetstream.WithSubjectFilter("sched.>"))
		return err == nil && slices.ContainsFunc(slices.Collect(maps.Keys(info.State.Subjects)), func(name string) bool { return !strings.HasSuffix(name, ".tick") })
	})
	for _, name := range []string{"admin", "sweep", "trigger"} {
		require.NoError(t, c.Process(name).Kill())
	}
	// A task whose submitter died before it published a wake-up.
	id := task.NewID()
	c.Admin.Exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
		values ($1, 0, 'default', 5, 3, 0, '13800138000', 'x')`, id)
	c.Admin.Exec(`insert into task_live (id, state, priority, max_retries, on_unknown, queue) values ($1, 1, 5, 3, 0, 'default')`, id)
	c.StartTrigger(c.Start("sweep"))
	cluster.RequireClaimed(t, waiting, time.Until(until)+3*time.Second, id.String())
	require.False(t, time.Now().Before(until), "not before the pause ends")
}

func TestResumedTemplateReleasesItsTasks(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	db := storetest.OpenAt(t, s.Owner.Config().ConnString())
	submitted, err := db.Subscribe.Submit(t.Context(), &subscribe.Submission{
		TaskID: task.NewID(), TemplateID: "tmpl/1 预订", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: 1, ReceiverUserID: 9,
		ReceiverOpenID: "openid", Data: []byte(`{}`), Queue: task.WeChatQueue, MaxRetries: 3, Metadata: []byte(`{}`),
	})
	require.NoError(t, err)
	id := submitted.TaskID.String()
	claim := func() []tasks.Claimed { // as the function wechat does
		claimed, _, err := db.Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: task.WeChatQueue, AppID: "a", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)})
		require.NoError(t, err)
		return claimed
	}
	require.Len(t, claim(), 1)
	require.Equal(t, 200, s.Post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","outcome":"released","retry_after_seconds":3600}`, id)).Status)
	for range 3 {
		_, err := db.Subscribe.StrikeTemplate(context.Background(), subscribe.CallerTemplate{TemplateID: "tmpl/1 预订"}, "47003: argument invalid")
		require.NoError(t, err)
	}
	templates := s.Get(cluster.AdminPath + "subscribe-templates").Data("templates").([]any)
	require.Len(t, templates, 1)
	shown := templates[0].(map[string]any)
	require.Equal(t, "tmpl/1 预订", shown["template_id"])
	require.EqualValues(t, 3, shown["strikes"])
	require.NotEmpty(t, shown["paused_at"])
	require.Equal(t, "0", shown["caller_id"])
	require.Equal(t, "admin", shown["caller_name"])

	resume := cluster.AdminPath + "subscribe-templates/tmpl%2F1%20%E9%A2%84%E8%AE%A2/resume"
	require.Equal(t, []string{"reason"}, s.Post(resume, `{}`).Fields())
	require.Equal(t, []string{"caller_id"}, s.Post(resume, `{"reason":"corrected","caller_id":-1}`).Fields())
	require.Equal(t, 404, s.Post(resume, `{"reason":"corrected","caller_id":"7"}`).Status, "the template is paused for another caller")
	resumed := s.Post(resume, `{"reason":"corrected","caller_id":"0"}`)
	require.Equal(t, 200, resumed.Status, resumed.Text)
	require.EqualValues(t, 1, resumed.Data("due_tasks"))
	require.Empty(t, s.Get(cluster.AdminPath+"subscribe-templates").Data("templates"))
	require.Equal(t, id, claim()[0].ID.String())
	require.Equal(t, 404, s.Post(resume, `{"reason":"corrected"}`).Status)
}
