package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// A caller whose calls wait for a lock holds half of the connections at most.
func TestCallsThatWaitLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url, func(c *Config) { c.MaxConns = 4 })
	s := message()
	db.mustSubmit(t, s)
	claim := db.mustClaim(t, "app", 1)[0]
	release := hold(t, url, `select from task_live where id = $1 for update`, s.ID)
	as := func(caller int64) context.Context { return WithCaller(t.Context(), caller) }
	extended := make(chan error, 20)
	for range cap(extended) {
		go func() {
			_, err := db.Extend(as(greedy), Extension{TaskID: s.ID, AppID: "app", ClaimID: claim.ClaimID, Lease: time.Minute}, nil)
			extended <- err
		}()
	}
	turns := db.hot.Config().ConnConfig.Tracer.(connectionLimiter).fairLimiter
	require.Eventually(t, func() bool { return turns.count() == cap(extended)-2 }, 5*time.Second, time.Millisecond)
	_, err := db.Task(as(modest), s.ID)
	require.NoError(t, err)
	db.mustSubmit(t, message())
	_, _, err = db.Claim(as(modest), ClaimRequest{Queue: "q", AppID: "app", CallerID: modest, Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Empty(t, extended, "the other calls wait still")
	release()
	for range cap(extended) {
		require.NoError(t, <-extended)
	}
	require.Empty(t, turns.used)
}
