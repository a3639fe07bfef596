package store

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

// fallenDue puts n scheduled tasks into each of some queues that fell due at the same
// time, earlier than all others.
func (db *DB) fallenDue(t *testing.T, n int, queues ...string) {
	t.Helper()
	db.exec(t, `set session_replication_role = replica;
		insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			select gen_random_uuid(), 0, queue, 5, 3, 0, '13800138000', 'x' from generate_series(1, `+strconv.Itoa(n)+`), `+sqlTexts(queues)+` queue;
		insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at)
			select id, 0, 5, 3, 0, queue, now() - interval '1 hour' from tasks where queue = any (array(select `+sqlTexts(queues)+`))`)
}

func sqlTexts(values []string) string {
	list := ""
	for i, v := range values {
		if i > 0 {
			list += ","
		}
		list += "'" + v + "'"
	}
	return "unnest(array[" + list + "])"
}

// scheduled submits a task of a queue that fell due later than those of fallenDue.
func (db *DB) scheduled(t *testing.T, queue string) task.ID {
	t.Helper()
	s := message(func(s *Submission) { s.Queue, s.SendAt = queue, time.Now().Add(time.Hour) })
	db.mustSubmit(t, s)
	db.exec(t, `update task_live set due_at = now() where id = $1`, s.ID)
	return s.ID
}

func ofQueue(queue string) func(*ClaimRequest) { return func(r *ClaimRequest) { r.Queue = queue } }

func TestAQueueWithMuchThatFellDueLetsTheOthersGoFirst(t *testing.T) {
	t.Parallel()
	db := open(t)
	zombie := message(func(s *Submission) { s.Queue = "senders" })
	db.mustSubmit(t, zombie)
	require.Len(t, db.claim(t, ofQueue("senders")), 1)
	db.lapse(t)
	db.fallenDue(t, 500, "flood")
	waits := db.scheduled(t, "neighbour")

	swept, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, PendingByQueue{"neighbour": 1, "senders": 1, "flood": 5}, swept.Pending, "each queue has its part of one batch")
	require.True(t, swept.More)
	require.Equal(t, task.Pending, db.mustTask(t, waits).State)

	again := db.scheduled(t, "neighbour")
	claimed := db.claim(t, ofQueue("neighbour"))
	require.Len(t, claimed, 2)
	require.Equal(t, again, claimed[1].ID, "a claim promotes what is due in its queue")
	for swept.More {
		swept, err = db.Sweep(t.Context(), 100)
		require.NoError(t, err)
	}
	require.Zero(t, db.count(t, `select count(*) from task_live where state = 0`), "all of the flood fell due too")
}

func TestVeryManyQueuesKeepNoneFromItsTurn(t *testing.T) {
	t.Parallel()
	db := open(t)
	var names []string
	for i := range 40 {
		names = append(names, "many-"+strconv.Itoa(i))
	}
	db.fallenDue(t, 100, names...)
	own, other := db.scheduled(t, "claimed"), db.scheduled(t, "waits")
	claimed, touched, err := db.Claim(t.Context(), ClaimRequest{Queue: "claimed", AppID: "app", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	require.Equal(t, own, claimed[0].ID, "a claim begins with its own queue")
	require.Greater(t, len(touched), 40, "and lets the others fall due")
	require.Equal(t, task.Pending, db.mustTask(t, other).State)

	another := db.scheduled(t, "waits")
	for range 100 {
		swept, err := db.Sweep(t.Context(), 10)
		require.NoError(t, err)
		require.LessOrEqual(t, swept.Rows, 11, "some of the queues in each batch")
		if swept.Pending["waits"] > 0 {
			break
		}
	}
	require.Equal(t, task.Pending, db.mustTask(t, another).State, "each has its turn by chance")
	require.NotZero(t, db.count(t, `select count(*) from task_live where state = 0`), "before all others are done")
}

func TestTasksFarFromDueKeepNoQueueFromItsTurn(t *testing.T) {
	t.Parallel()
	db := open(t)
	for i := range 40 {
		db.mustSubmit(t, message(func(s *Submission) { s.Queue, s.SendAt = "far-"+strconv.Itoa(i), time.Now().Add(time.Hour) }))
	}
	due := db.scheduled(t, "neighbour")
	swept, err := db.Sweep(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, PendingByQueue{"neighbour": 1}, swept.Pending, "the queue whose task is due first is always looked at")
	require.False(t, swept.More)
	require.WithinDuration(t, time.Now().Add(time.Hour), swept.Next, time.Minute)
	require.Equal(t, task.Pending, db.mustTask(t, due).State)
}
