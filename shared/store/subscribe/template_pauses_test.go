package subscribe_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func callerTemplate(caller int64, template string) subscribe.CallerTemplate {
	return subscribe.CallerTemplate{TemplateID: template, CallerID: caller}
}

func strike(t *testing.T, db *storetest.DB, caller int64, template string) (paused bool) {
	t.Helper()
	paused, err := db.Subscribe.StrikeTemplate(t.Context(), callerTemplate(caller, template), "47003: argument invalid")
	require.NoError(t, err)
	return paused
}

func pauseTemplate(t *testing.T, db *storetest.DB, caller int64, template string) {
	t.Helper()
	for range subscribe.TemplateStrikes {
		strike(t, db, caller, template)
	}
}

func mustPausedTemplates(t *testing.T, db *storetest.DB, templates ...subscribe.CallerTemplate) map[subscribe.CallerTemplate]bool {
	t.Helper()
	paused, err := db.Subscribe.PausedTemplates(t.Context(), templates)
	require.NoError(t, err)
	return paused
}

func TestThreeConsecutiveErrorsPauseTemplate(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	succeed := func(caller int64) {
		require.NoError(t, db.Subscribe.ClearTemplate(t.Context(), callerTemplate(caller, "a")))
	}
	succeed(7)
	require.False(t, strike(t, db, 7, "a"))
	require.False(t, strike(t, db, 7, "a"))
	succeed(7)
	require.False(t, strike(t, db, 7, "a"), "a success resets the count")
	require.False(t, strike(t, db, 7, "b"), "each template has its own count")
	require.False(t, strike(t, db, 8, "a"), "each caller has its own count")
	require.False(t, strike(t, db, 7, "a"))
	succeed(8)
	all := []subscribe.CallerTemplate{callerTemplate(7, "a"), callerTemplate(7, "b"), callerTemplate(8, "a"), callerTemplate(7, "c")}
	require.Empty(t, mustPausedTemplates(t, db, all...))
	require.True(t, strike(t, db, 7, "a"), "the success of another caller resets nothing")
	require.True(t, strike(t, db, 7, "a"), "the template is still paused")
	succeed(7)
	require.Equal(t, map[subscribe.CallerTemplate]bool{callerTemplate(7, "a"): true}, mustPausedTemplates(t, db, all...), "a success does not end a pause")
	require.Empty(t, mustPausedTemplates(t, db))

	list, more, err := db.Subscribe.Templates(t.Context(), subscribe.TemplateCursor{}, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, list, 2)
	require.Equal(t, callerTemplate(7, "a"), list[0].CallerTemplate)
	require.Equal(t, 4, list[0].Strikes)
	require.NotNil(t, list[0].PausedAt)
	require.Equal(t, "47003: argument invalid", list[0].Reason)
	require.Equal(t, callerTemplate(7, "b"), list[1].CallerTemplate)
	require.Nil(t, list[1].PausedAt)

	db.Exec(t, `update template_pauses set strikes = 32767`)
	require.True(t, strike(t, db, 7, "a"), "the count stays at its maximum")
	_, err = db.Subscribe.StrikeTemplate(t.Context(), callerTemplate(7, "d"), strings.Repeat("长", 600)+"\x00")
	require.NoError(t, err)
}

func TestPagesOfTemplatesHaveAllTemplates(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into template_pauses (template_id, caller_id, strikes, paused_at, reason)
		select 't' || n % 3, n, 3, case when n % 2 = 0 then now() - interval '1 minute' * (n / 4) end, 'x' from generate_series(1, 20) n`)
	all, more, err := db.Subscribe.Templates(t.Context(), subscribe.TemplateCursor{}, 20)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, all, 20)
	paged, _ := storetest.Pages(t, func(after subscribe.TemplateCursor) ([]subscribe.Template, bool, error) {
		return db.Subscribe.Templates(t.Context(), after, 3)
	}, func(x subscribe.Template) subscribe.TemplateCursor {
		return subscribe.TemplateCursor{CallerTemplate: x.CallerTemplate, PausedAt: x.PausedAt}
	})
	require.Equal(t, all, paged)
}

func TestConcurrentStrikesAreAllCounted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var strikes sync.WaitGroup
	for range 20 {
		strikes.Go(func() { strike(t, db, 7, "a") })
	}
	strikes.Wait()
	require.Equal(t, 20, db.Count(t, `select strikes from template_pauses where paused_at is not null`))
}

func TestResumeMakesOnlyReleasedTasksDue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	release := task.Report{Outcome: task.Released, RetryAfter: time.Hour, Message: "the template is paused"}
	submission := func(id uint64, template string, caller int64) *subscribe.Submission {
		s := storetest.Booking(id, `{}`)
		s.TemplateID, s.CallerID = template, caller
		return s
	}
	released, failed := submission(1, "a", 7), submission(3, "a", 7)
	otherTemplate, otherCaller := submission(2, "b", 7), submission(5, "a", 8)
	for s, r := range map[*subscribe.Submission]task.Report{released: release, otherTemplate: release, otherCaller: release, failed: {Outcome: task.SentFailed}} {
		db.MustSubscribe(t, s)
		db.ClaimAndReport(t, r)
	}
	later := submission(4, "a", 7)
	later.SendAt = time.Now().Add(time.Hour)
	db.MustSubscribe(t, later)
	pauseTemplate(t, db, 7, "a")
	pauseTemplate(t, db, 8, "a")

	by, caller := storetest.Tester, int64(7)
	by.Reason = "the template was corrected"
	due, err := db.Subscribe.ResumeTemplate(t.Context(), "a", &caller, by)
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	require.Equal(t, map[subscribe.CallerTemplate]bool{callerTemplate(8, "a"): true}, mustPausedTemplates(t, db, callerTemplate(7, "a"), callerTemplate(8, "a")))
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{task.WeChatQueue: 1}, swept.Pending)
	require.Equal(t, task.Pending, db.MustTask(t, released.TaskID).State)
	require.Equal(t, task.Scheduled, db.MustTask(t, otherTemplate.TaskID).State)
	require.Equal(t, task.Scheduled, db.MustTask(t, otherCaller.TaskID).State)
	require.Equal(t, task.Scheduled, db.MustTask(t, later.TaskID).State, "the send time is later")
	require.Equal(t, task.Failed, db.MustTask(t, failed.TaskID).State)

	require.False(t, strike(t, db, 7, "a"), "the count starts from zero")
	_, err = db.Subscribe.ResumeTemplate(t.Context(), "a", &caller, by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "a template with a strike that is not paused")
	log := db.Actions(t, "subscribe_template/a")
	require.Equal(t, []string{"subscribe_template.resume"}, storetest.ActionNames(log))
	require.Contains(t, string(log[0].Before), `"strikes": 3`)
	require.Contains(t, string(log[0].Before), `"caller_id": 7`)
	require.Equal(t, "the template was corrected", log[0].Reason)
}

func TestResumeMakesAllReleasedTasksDue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	pauseTemplate(t, db, 7, "a")
	const many = 2*subscribe.MaxReleased + 1
	db.Exec(t, `with t as (
			insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, ended)
			select gen_random_uuid(), 0, 5, 3, 0, 'wechat', now() + interval '1 hour', 3 from generate_series(1, $1) returning id
		) insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data) select id, 1, 'a', 'o', '{}' from t`, many)
	due, err := db.Subscribe.ResumeTemplate(t.Context(), "a", nil, storetest.Tester)
	require.NoError(t, err)
	require.EqualValues(t, many, due)
	require.Equal(t, many, db.Count(t, `select count(*) from task_live where due_at <= now()`))
}
