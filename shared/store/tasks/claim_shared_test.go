package tasks_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func claimRequest(app string, caller int64, limit int) tasks.ClaimRequest {
	return tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: app, CallerID: caller, Limit: limit, Lease: time.Minute, Request: []byte(`{"of":"` + app + `"}`)}
}

func claimedIDs(claimed []tasks.Claimed) []task.ID {
	return store.Column(claimed, func(c tasks.Claimed) task.ID { return c.ID })
}

func TestSharedClaimDividesTasksInOrder(t *testing.T) {
	t.Parallel()
	for _, lowWaterMarks := range []bool{false, true} {
		db := storetest.Open(t, storetest.WithEvents(store.AllEvents))
		ids := submitMany(t, db, 5, storetest.WithCallback)
		if lowWaterMarks {
			db.Tasks.UseMarks(task.DefaultQueue, tasks.Claimed{ID: ids[0], Priority: task.DefaultPriority})
		}
		longer := claimRequest("b", 2, 2)
		longer.Lease, longer.MarksSending = time.Hour, true
		claimed, err := db.Tasks.ClaimTogether(t.Context(), []tasks.ClaimRequest{claimRequest("a", 1, 2), longer, claimRequest("c", 3, 2), claimRequest("d", 4, 2)})
		require.NoError(t, err)
		require.Equal(t, [][]task.ID{ids[:2], ids[2:4], ids[4:], {}}, store.Column(claimed, claimedIDs))
		require.Equal(t, claimed[0][0].ClaimID, claimed[0][1].ClaimID)
		require.NotEqual(t, claimed[0][0].ClaimID, claimed[1][0].ClaimID)
		require.InDelta(t, time.Hour.Seconds()-60, claimed[1][0].LeaseUntil.Sub(claimed[0][0].LeaseUntil).Seconds(), 1)

		claimedByB := db.MustTask(t, ids[2])
		require.Equal(t, task.Processing, claimedByB.State)
		require.Equal(t, "b", claimedByB.AppID)
		require.EqualValues(t, 2, *claimedByB.ClaimedBy)
		require.Equal(t, 2, db.Count(t, `select count(*) from task_live where marks_sending`))
		require.Equal(t, 1, db.Count(t, `select count(distinct xmin::text) from send_logs`))
		require.Equal(t, 2, db.Count(t, `select count(*) from send_logs where app_id = 'b' and request_data->>'of' = 'b' and (response_data->>'claim_id')::bigint = $1`, claimed[1][0].ClaimID))
		require.Equal(t, 5, db.Count(t, `select coalesce(sum(cardinality(ids)), 0) from event_outbox where kind = 'task.processing'`))
	}
}

func TestSharedClaimsAreLookedUpAfterLostResponse(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	ids := submitMany(t, db, 3)
	lost := proxy.LoseResponse(sandbox.Containing("for update skip locked"))
	claimed, err := db.Tasks.ClaimTogether(t.Context(), []tasks.ClaimRequest{claimRequest("a", 1, 1), claimRequest("b", 2, 2)})
	<-lost
	require.NoError(t, err)
	require.Equal(t, [][]task.ID{ids[:1], ids[1:]}, store.Column(claimed, claimedIDs))
	require.Equal(t, 3, db.Count(t, `select count(*) from send_logs`), "claimed once")
	db.MustSubmit(t, storetest.Submission())
	next := db.ClaimAs(t, "app", 1)[0].ClaimID
	require.Equal(t, claimed[0][0].ClaimID+tasks.ClaimBlock, next, "the rest of the block is discarded: a new primary may return the same block")
}

func TestLostClaimIsLookedUpAfterItsStatementEnds(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	proxy.LoseCancels()
	db, observer := storetest.OpenAt(t, proxy.URL(), func(c *stores.Config) { c.MaxConns = 1 }), storetest.OpenAt(t, url)
	for _, limit := range []int{2, 11} { // a claim that may share a statement with others, and a claim above sharedLimit
		db.MustSubmit(t, storetest.Submission())
		db.ClaimAs(t, "app", limit) // prepares the statement: once the table is locked, preparing would wait
		submitMany(t, db, 2)
		release := observer.HoldLock(t, `lock table send_logs in exclusive mode`)
		claimed := make(chan []tasks.Claimed, 1)
		go func() {
			defer close(claimed)
			claimed <- db.ClaimAs(t, "app", limit)
		}()
		awaitLockWait := func(kind string) {
			t.Helper()
			require.Eventually(t, func() bool {
				return observer.Count(t, `select count(*) from pg_locks l join pg_stat_activity using (pid) where not granted and datname = current_database() and locktype = $1`, kind) == 1
			}, time.Minute, 5*time.Millisecond, kind)
		}
		awaitLockWait("relation")
		proxy.Cut()
		proxy.Restore()
		awaitLockWait("advisory")
		release()
		require.Len(t, <-claimed, 2)
		require.Equal(t, 0, observer.Count(t, `select count(*) from task_live where state = 1`), "no task is pending")
	}
	require.Equal(t, 6, observer.Count(t, `select count(*) from send_logs`), "claimed once")
}

func TestFailedClaimDoesNotFailOthersInItsStatement(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 20)
	release := db.HoldLock(t, `lock table send_logs in exclusive mode`)
	var all sync.WaitGroup
	claim := func(app string, caller int64) (claimed []tasks.Claimed, err error) {
		claimed, _, err = db.Tasks.Claim(t.Context(), claimRequest(app, caller, 1))
		return claimed, err
	}
	for caller := range int64(20) {
		all.Go(func() {
			if caller%4 == 1 {
				_, err := claim(strings.Repeat("x", 51), caller)
				require.ErrorContains(t, err, "too long")
				return
			}
			claimed, err := claim("app", caller)
			require.NoError(t, err)
			require.Len(t, claimed, 1)
		})
	}
	db.AwaitLockWait(t)
	release()
	all.Wait()
	require.Equal(t, 15, db.Count(t, `select count(distinct task_id) from send_logs`))
	require.Equal(t, 15, db.Count(t, `select count(*) from task_live where state = 2`), "tasks in processing")
}
