package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// Each function is a process of its own. The safety tick is an hour away, so only wake-ups and schedules can promote
// tasks.
func TestWakeUpsReachSeparateProcesses(t *testing.T) {
	t.Parallel()
	c := cluster.New(t, "SENDONCE_SAFETY_TICK=1h", "RETRY_BACKOFF=slow=3s,3s")
	c.StartFunctions("submit", "claim", "report", "sweep")
	trigger := c.StartTrigger(c.Address("sweep"))
	require.NoError(t, trigger.WaitFor(t.Context(), `"triggering"`))
	toSlow := func(r *api.SendRequest) { r.Queue = "slow" }
	claimSlow := func(wait, lease int) []api.ClaimedTask {
		tasks, err := c.API("claim").Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Queue: "slow", Wait: &wait, LeaseSeconds: &lease})
		require.NoError(t, err)
		return tasks
	}

	// The lease of this claim expires, and the last claim of the test gets the task again.
	unreported := c.Submit(toSlow)
	expiring := claimSlow(0, 10)
	require.Len(t, expiring, 1)
	require.Equal(t, unreported, expiring[0].TaskID)

	require.Empty(t, c.Claim(0))
	for range 2 {
		before := c.Admin.LastStatementAt()
		woken := make(chan []api.ClaimedTask, 1)
		go func() {
			wait := 30
			tasks, _ := c.API("claim").Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Wait: &wait})
			woken <- tasks
		}()
		c.Admin.UntilWaiting(before)
		id := c.Submit()
		tasks := <-woken
		require.Len(t, tasks, 1, "a submit in one process wakes the claim in another")
		require.Equal(t, id, tasks[0].TaskID)
	}

	soon := time.Now().Add(2 * time.Second)
	scheduled := c.Submit(func(r *api.SendRequest) { r.SendAt = &soon })
	tasks := c.Claim(30)
	require.Len(t, tasks, 1, "a schedule wakes sweep, and sweep the claim")
	require.Equal(t, scheduled, tasks[0].TaskID)
	require.NoError(t, c.Process("sweep").WaitFor(t.Context(), `"event_type":"sendonce.tick.sweep.v1"`))

	id := c.Submit(toSlow)
	claimed := claimSlow(0, 600)
	require.Len(t, claimed, 1)
	failed, reported := 3, time.Now()
	response, err := c.API("report").Report(t.Context(), api.ReportRequest{
		TaskID: id, AppID: "app", ClaimID: claimed[0].ClaimID, Status: &failed, ShouldRetry: true, ErrorMessage: "busy",
	})
	require.NoError(t, err)
	require.Equal(t, []any{"scheduled", 0, 1}, []any{response.State, response.Status, response.RetryCount})
	require.Empty(t, claimSlow(0, 600), "the task waits for its backoff")
	again := claimSlow(30, 600)
	require.Len(t, again, 1, "claimed again after its backoff")
	require.Equal(t, []any{id, 1}, []any{again[0].TaskID, again[0].RetryCount})
	require.GreaterOrEqual(t, time.Since(reported), 2900*time.Millisecond)

	again = claimSlow(30, 600)
	require.Len(t, again, 1, "claimed again after its lease and its backoff")
	require.Equal(t, []any{unreported, 1}, []any{again[0].TaskID, again[0].RetryCount})
	require.GreaterOrEqual(t, time.Since(expiring[0].LeaseUntil), 2900*time.Millisecond)
}
