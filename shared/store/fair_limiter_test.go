package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// A caller whose calls wait for a lock has at most half of the connections.
func TestBlockedCallsLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	const greedy, modest = 1, 2 // callers
	db := storetest.Open(t, func(c *stores.Config) { c.MaxConns = 4 })
	s := storetest.Submission()
	db.MustSubmit(t, s)
	claim := db.ClaimAs(t, "app", 1)[0]
	release := db.HoldLock(t, `select from task_live where id = $1 for update`, s.ID)
	as := func(caller int64) context.Context { return store.WithCaller(t.Context(), caller) }
	extended := make(chan error, 20)
	for range cap(extended) {
		go func() {
			_, err := db.Tasks.Extend(as(greedy), tasks.Extension{TaskID: s.ID, AppID: "app", ClaimID: claim.ClaimID, Lease: time.Minute}, nil)
			extended <- err
		}()
	}
	require.Eventually(t, func() bool { return store.WaitingForConnections(db.Hot) == cap(extended)-2 }, time.Minute, 10*time.Millisecond)
	_, err := db.Tasks.ByID(as(modest), s.ID)
	require.NoError(t, err)
	db.MustSubmit(t, storetest.Submission())
	_, _, err = db.Tasks.Claim(as(modest), tasks.ClaimRequest{Queue: "q", AppID: "app", CallerID: modest, Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Empty(t, extended, "the other calls still wait")
	release()
	for range cap(extended) {
		require.NoError(t, <-extended)
	}
	require.Zero(t, store.CallersWithConnections(db.Hot))
}

// Of four connections, callers may use three. Without maxCostlyReads, the counts of three callers would use all of them.
func TestCostlyReadsLeaveConnectionsToOtherReads(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.MaxConns = 4 })
	release := db.HoldLock(t, `lock table task_live`)
	as := func(caller int64) context.Context { return store.WithCaller(t.Context(), caller) }
	counted := make(chan error, 12)
	for i := range cap(counted) {
		go func() {
			_, err := db.Tasks.CountMatches(as(int64(1+i%3)), tasks.BulkFilter{State: task.Pending.String(), To: time.Now()})
			counted <- err
		}()
	}
	require.Eventually(t, func() bool { return store.WaitingForCostlyReads(db.DB) == cap(counted)-2 }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return db.Read.Stat().AcquiredConns() == 2 }, time.Minute, 10*time.Millisecond)
	_, _, err := db.Tasks.Bulks(as(4), nil, task.ID{}, 10)
	require.NoError(t, err)
	require.Empty(t, counted, "the counts still wait")
	release()
	for range cap(counted) {
		require.NoError(t, <-counted)
	}
}
