package tasks_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// insertOldestTasksSQL inserts pending tasks with ids that are older than all others. After their deletion, a claim scans the dead rows
// first.
const insertOldestTasksSQL = `
insert into task_live (id, state, priority, max_retries, on_unknown, queue)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1, $1, 3, 0, $2 from generate_series(1, $3) n`

// Without low-water marks, each poll would scan the dead rows, which vacuum cannot remove while the old snapshot is open.
func TestClaimsDoNotScanDeadRowsWhileASnapshotIsOld(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	pending := make(chan string, 100)
	db := storetest.OpenAt(t, url, func(c *stores.Config) { c.OnPending = func(queue string, _ int) { pending <- queue } })
	oldSnapshot := storetest.ConnectAsOwner(t, url)
	for _, sql := range []string{"begin isolation level repeatable read", "select count(*) from task_live"} {
		_, err := oldSnapshot.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	worker, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = worker.Exec(t.Context(), insertOldestTasksSQL, task.DefaultPriority, task.DefaultQueue, tasks.ManyDead+1)
	require.NoError(t, err)
	_, err = worker.Exec(t.Context(), "delete from task_live")
	require.NoError(t, err)
	require.NoError(t, worker.Close(t.Context())) // so that its statistics are written

	db.MustSubmit(t, storetest.Submission())
	require.Len(t, db.Claim(t), 1)
	require.Eventually(t, func() bool {
		db.Tasks.ObserveSlowClaims(task.DefaultQueue)
		require.Empty(t, db.Claim(t))
		return db.Tasks.MarksInUse(task.DefaultQueue)
	}, time.Minute, 10*time.Millisecond)

	for range 100 {
		s := storetest.Submission()
		db.MustSubmit(t, s)
		claimed := db.Claim(t)
		require.Len(t, claimed, 1)
		require.Equal(t, s.ID, claimed[0].ID)
		require.Empty(t, db.Claim(t))
	}
	claimAfterScan := func() (claimed []tasks.Claimed) { // each poll that finds nothing may start a scan
		require.Eventually(t, func() bool { claimed = db.Claim(t); return len(claimed) > 0 }, time.Minute, 10*time.Millisecond)
		require.Equal(t, task.DefaultQueue, <-pending)
		return claimed
	}
	below := storetest.Submission(func(s *tasks.Submission) { s.ID = task.IDFloor(time.Now().Add(-time.Hour)) })
	db.MustSubmit(t, below)
	require.Empty(t, db.Claim(t), "the task is below the mark, so only the scan in the background finds it")
	claimed := claimAfterScan()
	require.Len(t, claimed, 1)
	require.Equal(t, below.ID, claimed[0].ID)

	urgent := storetest.Submission(func(s *tasks.Submission) { s.Priority = 0 })
	db.MustSubmit(t, urgent)
	require.Empty(t, db.Claim(t), "there is no mark for its priority, so only the scan in the background finds it")
	require.Len(t, claimAfterScan(), 1)

	for i := range 1001 {
		require.Empty(t, db.Claim(t, storetest.FromQueue(fmt.Sprintf("none-%d", i))))
	}
	require.True(t, db.Tasks.MarksInUse(task.DefaultQueue), "polls of queues that do not exist remove no marks of other queues")

	_, err = oldSnapshot.Exec(t.Context(), "rollback")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		db.Exec(t, "vacuum task_live")
		require.Empty(t, db.Claim(t))
		return !db.Tasks.MarksInUse(task.DefaultQueue)
	}, time.Minute, 100*time.Millisecond)

	db.Close()
	require.Eventually(t, func() bool { // each connection writes its statistics before it ends
		return db.Count(t, `select count(*) from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()`) == 0
	}, time.Minute, 10*time.Millisecond)
	require.Less(t, db.Count(t, `select pg_stat_get_tuples_returned('task_live_ready'::regclass)`), 50*tasks.ManyDead)
}
