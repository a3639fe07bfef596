package tasks_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func withQuota(n int64) func(*stores.Config) { return func(c *stores.Config) { c.WaitingTasks = n } }

// submitTasks submits n tasks in one call, and returns how many were within the quota.
func submitTasks(t *testing.T, db *storetest.DB, caller callers.Caller, n int) (accepted int) {
	t.Helper()
	var rows []*tasks.Submission
	for range n {
		rows = append(rows, storetest.Submission(storetest.FromCaller(caller.ID)))
	}
	outs, errs := db.Tasks.SubmitWithinQuota(t.Context(), caller, rows)
	for i, out := range outs {
		require.NoError(t, errs[i])
		if out.Refused == nil {
			accepted++
			continue
		}
		require.Equal(t, task.CodeQuota, out.Refused.Code)
		require.Positive(t, out.Refused.RetryAfter)
	}
	return accepted
}

func TestQuotaLimitsUnfinishedTasksOfACaller(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url, withQuota(3))
	greedy, modest := callers.Caller{ID: 1}, callers.Caller{ID: 2}
	require.Equal(t, 3, submitTasks(t, db, greedy, 5))
	require.Zero(t, submitTasks(t, db, greedy, 1))
	require.Equal(t, 3, submitTasks(t, db, modest, 3), "the tasks of another caller are counted separately")
	require.Equal(t, 5, submitTasks(t, db, callers.Caller{}, 5), "the built-in admin has no quota")

	other := storetest.OpenAt(t, url, withQuota(3))
	submitTasks(t, other, callers.Caller{ID: 3}, 1) // starts a count of the tasks of all callers
	require.Eventually(t, func() bool { return submitTasks(t, other, greedy, 1)+submitTasks(t, other, modest, 1) == 0 }, time.Minute, 10*time.Millisecond)
	require.Equal(t, 1, submitTasks(t, other, callers.Caller{ID: 1, MaxWaitingTasks: new(int64(10))}, 1), "MaxWaitingTasks of a caller replaces the default limit")

	db.Exec(t, `update task_live set state = 3, due_at = null`)
	require.Zero(t, submitTasks(t, db, greedy, 1))
	db.Exec(t, `delete from task_live where caller_id = 1`)
	require.Eventually(t, func() bool { return submitTasks(t, db, greedy, 1) == 1 }, time.Minute, 10*time.Millisecond, "finished tasks do not use the quota")
	require.Zero(t, submitTasks(t, db, modest, 1), "held tasks use the quota")
}

func TestQuotaHoldsForConcurrentCalls(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, withQuota(50))
	var accepted atomic.Int64
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() { accepted.Add(int64(submitTasks(t, db, callers.Caller{ID: 1}, 4))) })
	}
	calls.Wait()
	require.LessOrEqual(t, accepted.Load(), int64(50))
	require.GreaterOrEqual(t, accepted.Load(), int64(25), "a task may be counted twice, in the database and in this process, so at least half of the quota is accepted")
	require.EqualValues(t, accepted.Load(), db.Count(t, `select count(*) from task_live`))
}

// If the table is larger than the sample, a count reads about as many bytes as the sample has, and estimates.
func TestLargeTableIsCountedBySample(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue, caller_id)
		select gen_random_uuid(), 1, 5, 3, 0, 'default', case when g % 5000 = 0 then 2 else 1 end from generate_series(1, 20000) g`)
	counted := func(sampleBytes int) map[int64]quota.Waiting {
		byCaller, err := db.Tasks.CountTasks(t.Context(), sampleBytes)
		require.NoError(t, err)
		return byCaller
	}
	require.Equal(t, map[int64]quota.Waiting{1: {Items: 19_996}, 2: {Items: 4}}, counted(tasks.TaskSample))
	size := db.Count(t, `select pg_relation_size('task_live')`)
	sampled := counted(size / 2)
	require.Greater(t, sampled[1].Items, int64(8_000))
	require.Less(t, sampled[1].Items, int64(24_000))
	require.Zero(t, sampled[2].Items, "the count of a caller with very few rows in the sample is 0")
}
