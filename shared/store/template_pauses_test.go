package store

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) strike(t *testing.T, template string) (paused bool) {
	t.Helper()
	paused, err := db.StrikeTemplate(t.Context(), template, "47003: argument invalid")
	require.NoError(t, err)
	return paused
}

func (db *DB) mustPausedTemplates(t *testing.T, ids ...string) map[string]bool {
	t.Helper()
	paused, err := db.PausedTemplates(t.Context(), ids)
	require.NoError(t, err)
	return paused
}

func TestThreeErrorsInARowPauseATemplate(t *testing.T) {
	t.Parallel()
	db := open(t)
	clear := func() { require.NoError(t, db.ClearTemplate(t.Context(), "a")) }
	clear()
	require.False(t, db.strike(t, "a"))
	require.False(t, db.strike(t, "a"))
	clear()
	require.False(t, db.strike(t, "a"), "a success in between counts")
	require.False(t, db.strike(t, "b"), "each template has its own")
	require.False(t, db.strike(t, "a"))
	require.Empty(t, db.mustPausedTemplates(t, "a", "b"))
	require.True(t, db.strike(t, "a"))
	require.True(t, db.strike(t, "a"), "and stays so")
	clear()
	require.Equal(t, map[string]bool{"a": true}, db.mustPausedTemplates(t, "a", "b", "c"), "a late success lifts nothing")
	require.Empty(t, db.mustPausedTemplates(t))

	list, err := db.SubscribeTemplates(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "a", list[0].ID)
	require.Equal(t, 4, list[0].Strikes)
	require.NotNil(t, list[0].PausedAt)
	require.Equal(t, "47003: argument invalid", list[0].Reason)
	require.Equal(t, "b", list[1].ID)
	require.Nil(t, list[1].PausedAt)

	db.exec(t, `update template_pauses set strikes = 32767`)
	require.True(t, db.strike(t, "a"), "counting has an end, striking has none")
	_, err = db.StrikeTemplate(t.Context(), "d", strings.Repeat("长", 600)+"\x00")
	require.NoError(t, err)
}

func TestStrikesAtTheSameTimeAreAllCounted(t *testing.T) {
	t.Parallel()
	db := open(t)
	var strikes sync.WaitGroup
	for range 20 {
		strikes.Go(func() { db.strike(t, "a") })
	}
	strikes.Wait()
	require.Equal(t, 20, db.count(t, `select strikes from template_pauses where paused_at is not null`))
}

func TestALiftedTemplateMakesWhatWasGivenBackDueAndNothingElse(t *testing.T) {
	t.Parallel()
	db := open(t)
	release := task.Report{Outcome: task.Released, RetryAfter: time.Hour, Message: "the template is paused"}
	of := func(id uint64, template string) *Subscription {
		s := booking(id, `{}`)
		s.TemplateID = template
		return s
	}
	released, other, failed := of(1, "a"), of(2, "b"), of(3, "a")
	for s, r := range map[*Subscription]task.Report{released: release, other: release, failed: {Outcome: task.SentFailed}} {
		db.subscribe(t, s)
		db.try(t, r)
	}
	later := of(4, "a")
	later.SendAt = time.Now().Add(time.Hour)
	db.subscribe(t, later)
	for range templateStrikes {
		db.strike(t, "a")
	}

	by := tester
	by.Reason = "the template was mended"
	due, err := db.LiftTemplate(t.Context(), "a", by)
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	require.Empty(t, db.mustPausedTemplates(t, "a"))
	swept, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, Touched{task.WeChatQueue: 1}, swept.Pending)
	require.Equal(t, task.Pending, db.mustTask(t, released.TaskID).State)
	require.Equal(t, task.Scheduled, db.mustTask(t, other.TaskID).State, "of another template")
	require.Equal(t, task.Scheduled, db.mustTask(t, later.TaskID).State, "its submitter wants it later")
	require.Equal(t, task.Failed, db.mustTask(t, failed.TaskID).State)

	require.False(t, db.strike(t, "a"), "the strikes begin anew")
	_, err = db.LiftTemplate(t.Context(), "a", by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "it has a strike, and is not paused")
	log := db.actions(t, "subscribe_template/a")
	require.Equal(t, []string{"subscribe_template.resume"}, words(log))
	require.Contains(t, string(log[0].Before), `"strikes": 3`)
	require.Equal(t, "the template was mended", log[0].Reason)
}

func TestLiftingTakesAllTasksHoweverMany(t *testing.T) {
	t.Parallel()
	db := open(t)
	for range templateStrikes {
		db.strike(t, "a")
	}
	const many = 2*releasedRows + 1
	db.exec(t, `with t as (
			insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, ended)
			select gen_random_uuid(), 0, 5, 3, 0, 'wechat', now() + interval '1 hour', 3 from generate_series(1, $1) returning id
		) insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data) select id, 1, 'a', 'o', '{}' from t`, many)
	due, err := db.LiftTemplate(t.Context(), "a", tester)
	require.NoError(t, err)
	require.EqualValues(t, many, due)
	require.Equal(t, many, db.count(t, `select count(*) from task_live where due_at <= now()`))
}
