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

// of is a template as caller uses it.
func of(caller int64, template string) subscribe.CallerTemplate {
	return subscribe.CallerTemplate{TemplateID: template, CallerID: caller}
}

func strike(t *testing.T, db *storetest.DB, caller int64, template string) (paused bool) {
	t.Helper()
	paused, err := db.Subscribe.StrikeTemplate(t.Context(), of(caller, template), "47003: argument invalid")
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

func TestThreeErrorsInARowPauseATemplate(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	clear := func(caller int64) { require.NoError(t, db.Subscribe.ClearTemplate(t.Context(), of(caller, "a"))) }
	clear(7)
	require.False(t, strike(t, db, 7, "a"))
	require.False(t, strike(t, db, 7, "a"))
	clear(7)
	require.False(t, strike(t, db, 7, "a"), "a success in between counts")
	require.False(t, strike(t, db, 7, "b"), "each template has its own")
	require.False(t, strike(t, db, 8, "a"), "each caller has its own")
	require.False(t, strike(t, db, 7, "a"))
	clear(8)
	all := []subscribe.CallerTemplate{of(7, "a"), of(7, "b"), of(8, "a"), of(7, "c")}
	require.Empty(t, mustPausedTemplates(t, db, all...))
	require.True(t, strike(t, db, 7, "a"), "the success of another caller wipes out nothing")
	require.True(t, strike(t, db, 7, "a"), "and stays so")
	clear(7)
	require.Equal(t, map[subscribe.CallerTemplate]bool{of(7, "a"): true}, mustPausedTemplates(t, db, all...), "a late success ends nothing")
	require.Empty(t, mustPausedTemplates(t, db))

	list, more, err := db.Subscribe.Templates(t.Context(), subscribe.TemplateCursor{}, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, list, 2)
	require.Equal(t, of(7, "a"), list[0].CallerTemplate)
	require.Equal(t, 4, list[0].Strikes)
	require.NotNil(t, list[0].PausedAt)
	require.Equal(t, "47003: argument invalid", list[0].Reason)
	require.Equal(t, of(7, "b"), list[1].CallerTemplate)
	require.Nil(t, list[1].PausedAt)

	db.Exec(t, `update template_pauses set strikes = 32767`)
	require.True(t, strike(t, db, 7, "a"), "counting has an end, striking has none")
	_, err = db.Subscribe.StrikeTemplate(t.Context(), of(7, "d"), strings.Repeat("长", 600)+"\x00")
	require.NoError(t, err)
}

func TestPagesOfTemplatesGoThroughAllOfThem(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into template_pauses (template_id, caller_id, strikes, paused_at, reason)
		select 't' || n % 3, n, 3, case when n % 2 = 0 then now() - interval '1 minute' * (n / 4) end, 'x' from generate_series(1, 20) n`)
	all, more, err := db.Subscribe.Templates(t.Context(), subscribe.TemplateCursor{}, 20)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, all, 20)
	var paged []subscribe.Template
	for cursor := (subscribe.TemplateCursor{}); ; {
		page, more, err := db.Subscribe.Templates(t.Context(), cursor, 3)
		require.NoError(t, err)
		paged = append(paged, page...)
		if !more {
			break
		}
		last := page[len(page)-1]
		cursor = subscribe.TemplateCursor{CallerTemplate: last.CallerTemplate, PausedAt: last.PausedAt}
	}
	require.Equal(t, all, paged)
}

func TestStrikesAtTheSameTimeAreAllCounted(t *testing.T) {
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
	order := func(id uint64, template string, caller int64) *subscribe.Submission {
		s := storetest.Booking(id, `{}`)
		s.TemplateID, s.CallerID = template, caller
		return s
	}
	released, other, failed, neighbour := order(1, "a", 7), order(2, "b", 7), order(3, "a", 7), order(5, "a", 8)
	for s, r := range map[*subscribe.Submission]task.Report{released: release, other: release, failed: {Outcome: task.SentFailed}, neighbour: release} {
		db.MustSubscribe(t, s)
		db.Try(t, r)
	}
	later := order(4, "a", 7)
	later.SendAt = time.Now().Add(time.Hour)
	db.MustSubscribe(t, later)
	pauseTemplate(t, db, 7, "a")
	pauseTemplate(t, db, 8, "a")

	by, seven := storetest.Tester, int64(7)
	by.Reason = "the template was corrected"
	due, err := db.Subscribe.ResumeTemplate(t.Context(), "a", &seven, by)
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	require.Equal(t, map[subscribe.CallerTemplate]bool{of(8, "a"): true}, mustPausedTemplates(t, db, of(7, "a"), of(8, "a")))
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{task.WeChatQueue: 1}, swept.Pending)
	require.Equal(t, task.Pending, db.MustTask(t, released.TaskID).State)
	require.Equal(t, task.Scheduled, db.MustTask(t, other.TaskID).State, "of another template")
	require.Equal(t, task.Scheduled, db.MustTask(t, neighbour.TaskID).State, "of another caller")
	require.Equal(t, task.Scheduled, db.MustTask(t, later.TaskID).State, "its submitter wants it later")
	require.Equal(t, task.Failed, db.MustTask(t, failed.TaskID).State)

	require.False(t, strike(t, db, 7, "a"), "the strikes begin anew")
	_, err = db.Subscribe.ResumeTemplate(t.Context(), "a", &seven, by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "it has a strike, and is not paused")
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
	const many = 2*subscribe.ReleasedRows + 1
	db.Exec(t, `with t as (
			insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, ended)
			select gen_random_uuid(), 0, 5, 3, 0, 'wechat', now() + interval '1 hour', 3 from generate_series(1, $1) returning id
		) insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data) select id, 1, 'a', 'o', '{}' from t`, many)
	due, err := db.Subscribe.ResumeTemplate(t.Context(), "a", nil, storetest.Tester)
	require.NoError(t, err)
	require.EqualValues(t, many, due)
	require.Equal(t, many, db.Count(t, `select count(*) from task_live where due_at <= now()`))
}
