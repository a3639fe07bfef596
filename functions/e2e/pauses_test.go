package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

func submitTask(s *server) string {
	s.t.Helper()
	sent := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	require.Equal(s.t, 200, sent.status, sent.text)
	return sent.data("task_id").(string)
}

func pauseQueue(s *server, queue string, until time.Time) reply {
	s.t.Helper()
	end := ""
	if !until.IsZero() {
		end = fmt.Sprintf(`"until":%q,`, until.Format(time.RFC3339Nano))
	}
	paused := s.post(root+"queues/"+queue+"/pause", `{`+end+`"reason":"the gateway is down"}`)
	require.Equal(s.t, 200, paused.status, paused.text)
	return paused
}

func resumeQueue(s *server, queue string) reply {
	s.t.Helper()
	resumed := s.post(root+"queues/"+queue+"/resume", `{"reason":"it is up"}`)
	require.Equal(s.t, 200, resumed.status, resumed.text)
	return resumed
}

// queueInfo gives one line of the list of queues.
func queueInfo(s *server, name string) map[string]any {
	s.t.Helper()
	got := s.get(root + "queues")
	for _, q := range got.data("queues").([]any) {
		if q.(map[string]any)["queue"] == name {
			return q.(map[string]any)
		}
	}
	return nil
}

// within demands an answer of one task in time, which is before the poll gives up.
func within(t *testing.T, woken <-chan reply, limit time.Duration, id string) {
	t.Helper()
	select {
	case got := <-woken:
		require.Equal(t, 200, got.status, got.text)
		require.Len(t, got.list(), 1)
		require.Equal(t, id, got.list()[0]["task_id"])
	case <-time.After(limit):
		t.Fatal("the waiting claim slept on")
	}
}

func TestAnOperatorPausesAndResumesAQueue(t *testing.T) {
	t.Parallel()
	s := serve(t)
	id := submitTask(s)
	paused := pauseQueue(s, "default", time.Time{})
	require.Equal(t, "admin", paused.data("paused_by"))
	require.Equal(t, true, paused.data("by_hand"))
	require.Nil(t, paused.data("until"))
	none := s.get("/api/v1/sms/tasks/pending?app_id=a")
	require.Equal(t, 200, none.status)
	require.Contains(t, none.text, `"data":[]`)
	line := queueInfo(s, "default")
	require.EqualValues(t, 1, line["pending_new_tasks"])
	require.Equal(t, "the gateway is down", line["pause"].(map[string]any)["reason"])
	statistics := s.get(root + "statistics").data("queues").([]any)[0].(map[string]any)
	for name, n := range statistics {
		if name != "oldest_pending_seconds" {
			require.Equal(t, n, line[name], name)
		}
	}

	require.EqualValues(t, 1, resumeQueue(s, "default").data("pending_tasks"))
	require.Nil(t, queueInfo(s, "default")["pause"])
	require.Equal(t, id, s.get("/api/v1/sms/tasks/pending?app_id=a").list()[0]["task_id"])
	again := s.post(root+"queues/default/resume", `{"reason":"x"}`)
	require.Equal(t, 404, again.status)
	require.Equal(t, "queue default is not paused", again.body["message"])
	actions := s.get(root + "actions?subject=queue/default").data("items").([]any)
	require.Len(t, actions, 2)
	require.Equal(t, "queue.resume", actions[0].(map[string]any)["action"])
	require.Equal(t, "it is up", actions[0].(map[string]any)["reason"])
}

func TestAQueueWithoutTasksCanBePausedBeforeItHasAny(t *testing.T) {
	t.Parallel()
	s := serve(t)
	pauseQueue(s, "bulk", time.Now().Add(time.Hour))
	line := queueInfo(s, "bulk")
	require.EqualValues(t, 0, line["pending_new_tasks"])
	require.NotEmpty(t, line["pause"].(map[string]any)["until"])
	s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","queue":"bulk"}`)
	require.Empty(t, s.get("/api/v1/sms/tasks/pending?app_id=a&queue=bulk").list())
}

func TestABadPauseIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	year := time.Now().AddDate(1, 1, 0).Format(time.RFC3339)
	for body, fields := range map[string][]string{
		`{}`:                                    {"reason"},
		`{"reason":" "}`:                        {"reason"},
		`{"reason":"x","until":"soon"}`:         {"until"},
		`{"reason":"x","until":"` + year + `"}`: {"until"},
		`{"reason":"` + strings.Repeat("长", 501) + `","until":"2001-01-01T00:00:00Z","by":1}`: {"by", "reason", "until"},
	} {
		got := s.post(root+"queues/default/pause", body)
		require.Equal(t, 400, got.status, body)
		require.ElementsMatch(t, fields, got.fields(), body)
	}
	for _, queue := range []string{"a%20b", "%00", strings.Repeat("q", 64), "%E9%98%9F"} {
		require.Equal(t, 404, s.post(root+"queues/"+queue+"/pause", `{"reason":"x"}`).status, queue)
		require.Equal(t, 404, s.post(root+"subscribe-templates/"+queue+"/resume", `{"reason":"x"}`).status, queue)
	}
	require.Equal(t, 403, s.caller("app", "sender").post(root+"queues/default/pause", `{"reason":"x"}`).status)
	require.Zero(t, s.count(`select count(*) from queue_pauses`))
}

// No NATS, no sweep: the poll itself knows when the pause ends.
func TestAWaitingClaimGetsItsTaskWhenThePauseEndsByItself(t *testing.T) {
	t.Parallel()
	s := serve(t)
	id := submitTask(s)
	until := time.Now().Add(4 * time.Second)
	pauseQueue(s, "default", until)
	woken := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	before := s.lastStatement()
	require.True(t, time.Now().Before(until))
	within(t, woken, time.Until(until)+2*time.Second, id)
	require.False(t, time.Now().Before(until), "no sooner")
	require.True(t, before.Before(s.lastStatement()))
	require.Zero(t, s.count(`select count(*) from queue_pauses where until > now()`))
}

func TestAWaitingClaimWakesWhenItsQueueIsResumed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	id := submitTask(s)
	pauseQueue(s, "default", time.Time{})
	woken := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	resumeQueue(s, "default")
	within(t, woken, 2*time.Second, id)
}

// startServer starts one function, to be killed later, and gives it as an admin sees it.
func startServer(o *postOffice, function string) (*sandbox.Process, *server) {
	o.t.Helper()
	process := startProcess(o.t, o.bin, slices.Concat(o.env, []string{"FUNCTION_TARGET=" + function}))
	s := o.at(address(o.t, process))
	s.owner = o.looker.owner
	return process, s
}

func TestAResumeInOneProcessWakesAClaimThatWaitsInAnother(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	_, claims := startServer(o, "claim")
	_, admin := startServer(o, "admin")
	_, submit := startServer(o, "submit")
	id := submitTask(submit)
	pauseQueue(admin, "default", time.Time{})
	woken := claims.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	resumeQueue(admin, "default")
	within(t, woken, 2*time.Second, id)
}

// The poll that waits was there before the pause and knows nothing of it, and all
// who knew are killed: what NATS keeps has sweep end the pause and tell the poll.
func TestSweepTellsOfAPausesEndWhenAllWhoKnewOfItWereKilled(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	_, claims := startServer(o, "claim")
	admin, desk := startServer(o, "admin")
	sweep, first := startServer(o, "sweep")
	trigger := startProcess(t, o.bin, slices.Concat(o.env, []string{"SENDONCE_FUNCTIONS_URL=" + first.url}), "trigger")
	require.NoError(t, trigger.WaitFor(t.Context(), `"triggering"`))
	waiting := claims.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	until := time.Now().Add(6 * time.Second)
	pauseQueue(desk, "default", until)
	wake, err := o.jetStream().Stream(t.Context(), "WAKE")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := wake.Info(t.Context(), jetstream.WithSubjectFilter("sched.>"))
		return err == nil && slices.ContainsFunc(slices.Collect(maps.Keys(info.State.Subjects)), func(name string) bool { return !strings.HasSuffix(name, ".tick") })
	}, waitLimit, 10*time.Millisecond)
	for _, one := range []*sandbox.Process{admin, sweep, trigger} {
		require.NoError(t, one.Kill())
	}
	// A task whose submitter died before it told anybody.
	id := task.NewID()
	o.looker.exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
		values ($1, 0, 'default', 5, 3, 0, '13800138000', 'x')`, id)
	o.looker.exec(`insert into task_live (id, state, priority, max_retries, on_unknown, queue) values ($1, 1, 5, 3, 0, 'default')`, id)
	_, again := startServer(o, "sweep")
	o.trigger(again.url)
	within(t, waiting, time.Until(until)+3*time.Second, id.String())
	require.False(t, time.Now().Before(until), "no sooner")
}

// A resume is stored before anybody is told, so any sweep can tell of it.
func TestSweepTellsOfAResumeWhoseProcessDied(t *testing.T) {
	t.Parallel()
	s := serve(t)
	id := submitTask(s)
	pauseQueue(s, "default", time.Time{})
	woken := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	s.exec(`update queue_pauses set until = now()`) // as ResumeQueue leaves it
	require.Equal(t, 204, s.tick("sweep").status)
	within(t, woken, 2*time.Second, id)
	require.Zero(t, s.count(`select count(*) from queue_pauses`))
}

func TestALiftedTemplateSendsWhatItHeldBack(t *testing.T) {
	t.Parallel()
	s := serve(t)
	db, err := store.Open(store.Config{URL: s.owner.Config().ConnString(), Roles: store.Roles(sandbox.Roles), StatusOf: func(string) int { return 400 }})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	order, err := db.Subscribe(t.Context(), &store.Subscription{
		TaskID: task.NewID(), TemplateID: "tmpl/1 预订", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: 1, ReceiverUserID: 9,
		ReceiverOpenID: "openid", Data: []byte(`{}`), Queue: task.WeChatQueue, MaxRetries: 3, Metadata: []byte(`{}`),
	})
	require.NoError(t, err)
	id := order.TaskID.String()
	claim := func() []store.Claimed { // as the function wechat does
		claimed, _, err := db.Claim(t.Context(), store.ClaimRequest{Queue: task.WeChatQueue, AppID: "a", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)})
		require.NoError(t, err)
		return claimed
	}
	require.Len(t, claim(), 1)
	require.Equal(t, 200, s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","outcome":"released","retry_after_seconds":3600}`, id)).status)
	for range 3 {
		_, err := db.StrikeTemplate(context.Background(), store.CallerTemplate{TemplateID: "tmpl/1 预订"}, "47003: argument invalid")
		require.NoError(t, err)
	}
	templates := s.get(root + "subscribe-templates").data("templates").([]any)
	require.Len(t, templates, 1)
	shown := templates[0].(map[string]any)
	require.Equal(t, "tmpl/1 预订", shown["template_id"])
	require.EqualValues(t, 3, shown["strikes"])
	require.NotEmpty(t, shown["paused_at"])
	require.Equal(t, "0", shown["caller_id"])
	require.Equal(t, "admin", shown["caller_name"])

	lift := root + "subscribe-templates/tmpl%2F1%20%E9%A2%84%E8%AE%A2/resume"
	require.Equal(t, []string{"reason"}, s.post(lift, `{}`).fields())
	require.Equal(t, []string{"caller_id"}, s.post(lift, `{"reason":"corrected","caller_id":-1}`).fields())
	require.Equal(t, 404, s.post(lift, `{"reason":"corrected","caller_id":"7"}`).status, "it is paused for another caller")
	lifted := s.post(lift, `{"reason":"corrected","caller_id":"0"}`)
	require.Equal(t, 200, lifted.status, lifted.text)
	require.EqualValues(t, 1, lifted.data("due_tasks"))
	require.Empty(t, s.get(root+"subscribe-templates").data("templates"))
	require.Equal(t, id, claim()[0].ID.String())
	require.Equal(t, 404, s.post(lift, `{"reason":"corrected"}`).status)
}

func (s story) tellOfPauses() {
	s.t.Helper()
	at := root + "queues/bulk"
	s.post(200, at+"/pause", `{"reason":"the gateway is being moved"}`)
	s.post(200, at+"/pause", fmt.Sprintf(`{"reason":"for an hour","until":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339)))
	s.post(400, at+"/pause", `{}`)
	s.post(404, root+"queues/a%20b/pause", `{"reason":"x"}`)
	s.get(200, root+"queues")
	require.Empty(s.t, s.get(200, "/api/v1/sms/tasks/pending?app_id=app&queue=bulk").list())
	s.post(400, at+"/resume", `{"reason":" "}`)
	s.post(200, at+"/resume", `{"reason":"it is done"}`)
	s.post(404, at+"/resume", `{"reason":"it is done"}`)

	s.exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason)
		values ('a', 0, 1, null, 'x'), ('b', 0, 3, now(), 'y'), ('b.预', -1, 3, now(), 'y'), ('c', 0, 3, now(), 'z')`)
	s.get(200, root+"subscribe-templates")
	var pages []string
	for after := ""; len(pages) < 4; {
		page := s.get(200, root+"subscribe-templates?limit=1&after="+url.QueryEscape(after))
		pages = append(pages, page.data("templates").([]any)[0].(map[string]any)["template_id"].(string))
		if after, _ = page.data("next_after").(string); after == "" {
			break
		}
	}
	require.Equal(s.t, []string{"b", "b.预", "c", "a"}, pages)
	s.get(400, root+"subscribe-templates?after=1.2")
	s.post(200, root+"subscribe-templates/c/resume", `{"reason":"corrected","caller_id":"0"}`)
	s.post(400, root+"subscribe-templates/b/resume", `{}`)
	s.post(200, root+"subscribe-templates/b/resume", `{"reason":"corrected"}`)
	s.post(404, root+"subscribe-templates/b/resume", `{"reason":"corrected"}`)
}
