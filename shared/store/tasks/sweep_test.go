package tasks_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// insertDue inserts n scheduled tasks into each of the queues. All have the same due time,
// earlier than those of other tasks.
func insertDue(t *testing.T, db *storetest.DB, n int, queues ...string) {
	t.Helper()
	db.Exec(t, `with bodies as (
			insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			select gen_random_uuid(), 0, queue, 5, 3, 0, '13800138000', 'x' from generate_series(1, $1), unnest($2::text[]) queue
			returning id, queue
		)
		insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at)
		select id, 0, 5, 3, 0, queue, now() - interval '1 hour' from bodies`, n, queues)
}

// submitDue submits a task that is due now, so later than the tasks of insertDue.
func submitDue(t *testing.T, db *storetest.DB, queue string) task.ID {
	t.Helper()
	s := storetest.Submission(func(s *tasks.Submission) { s.Queue, s.SendAt = queue, time.Now().Add(time.Hour) })
	db.MustSubmit(t, s)
	db.Exec(t, `update task_live set due_at = now() where id = $1`, s.ID)
	return s.ID
}

func TestQueueWithManyDueTasksDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(storetest.InQueue("senders")))
	require.Len(t, db.Claim(t, storetest.FromQueue("senders")), 1)
	db.ExpireLeases(t)
	insertDue(t, db, 500, "flood")
	older := submitDue(t, db, "neighbour")

	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{"neighbour": 1, "senders": 1, "flood": 5}, swept.Pending, "each queue has its part of one batch")
	require.True(t, swept.More)
	require.Equal(t, task.Pending, db.MustTask(t, older).State)

	newer := submitDue(t, db, "neighbour")
	claimed := db.Claim(t, storetest.FromQueue("neighbour"))
	require.Len(t, claimed, 2)
	require.Equal(t, newer, claimed[1].ID, "a claim promotes the due tasks of its queue")
	for swept.More {
		swept, err = db.Tasks.Sweep(t.Context(), 100)
		require.NoError(t, err)
	}
	require.Zero(t, db.Count(t, `select count(*) from task_live where state = 0`), "all tasks of the flood were promoted too")
}

func TestManyQueuesDoNotStarveOne(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var names []string
	for i := range 40 {
		names = append(names, "many-"+strconv.Itoa(i))
	}
	insertDue(t, db, 100, names...)
	own, older := submitDue(t, db, "claimed"), submitDue(t, db, "waits")
	claimed, pending, err := db.Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: "claimed", AppID: "app", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	require.Equal(t, own, claimed[0].ID, "a claim begins with its own queue")
	require.Greater(t, len(pending), 40, "a claim also promotes due tasks of other queues")
	require.Equal(t, task.Pending, db.MustTask(t, older).State)

	newer := submitDue(t, db, "waits")
	for range 100 {
		swept, err := db.Tasks.Sweep(t.Context(), 10)
		require.NoError(t, err)
		require.LessOrEqual(t, swept.Rows, 11, "one task of each of 10 queues, and of the queue whose task is due first")
		if swept.Pending["waits"] > 0 {
			break
		}
	}
	require.Equal(t, task.Pending, db.MustTask(t, newer).State, "each batch begins at a random queue, so after some batches each queue was chosen")
	require.NotZero(t, db.Count(t, `select count(*) from task_live where state = 0`), "the queue did not wait until all tasks of the others were promoted")
}

func TestTasksThatAreNotDueDoNotDelayADueTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for i := range 40 {
		db.MustSubmit(t, storetest.Submission(func(s *tasks.Submission) { s.Queue, s.SendAt = "far-"+strconv.Itoa(i), time.Now().Add(time.Hour) }))
	}
	due := submitDue(t, db, "neighbour")
	swept, err := db.Tasks.Sweep(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{"neighbour": 1}, swept.Pending, "the queue whose task is due first is always considered")
	require.False(t, swept.More)
	require.WithinDuration(t, time.Now().Add(time.Hour), swept.Next, time.Minute)
	require.Equal(t, task.Pending, db.MustTask(t, due).State)
}
