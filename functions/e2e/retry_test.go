package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// firstWait is what the first retry of queue slow waits.
const firstWait = 5 * time.Second

const slowBackoff = "RETRY_BACKOFF=slow=5s,30s"

// claimSlow claims from queue slow, waiting up to so many seconds.
func claimSlow(d *cluster.Cluster, wait int) []api.ClaimedTask {
	d.T.Helper()
	lease := 10 // the shortest
	tasks, err := d.API("claim").Claim(d.T.Context(), api.ClaimRequest{AppID: "app", Queue: "slow", Wait: &wait, LeaseSeconds: &lease})
	require.NoError(d.T, err)
	return tasks
}

func toSlow(r *api.SendRequest) { r.Queue = "slow" }

func TestFailedTaskIsClaimedAgainAfterBackoff(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t, slowBackoff)
	id := d.Submit(toSlow)
	claimed := claimSlow(d, 0)
	require.Len(t, claimed, 1)
	failed := 3
	before := time.Now()
	answer, err := d.API("report").Report(t.Context(), api.ReportRequest{
		TaskID: id, AppID: "app", ClaimID: claimed[0].ClaimID, Status: &failed, ShouldRetry: true, ErrorMessage: "busy",
	})
	require.NoError(t, err)
	require.Equal(t, "scheduled", answer.State)
	require.Equal(t, 0, answer.Status)
	require.Equal(t, 1, answer.RetryCount)
	require.Empty(t, claimSlow(d, 0), "it waits")

	again := claimSlow(d, 30)
	took := time.Since(before)
	t.Logf("claimed again %v after the report", took)
	require.Len(t, again, 1, "the safety tick is an hour away: a schedule woke sweep, and sweep the claim")
	require.Equal(t, id, again[0].TaskID)
	require.Equal(t, 1, again[0].RetryCount)
	require.GreaterOrEqual(t, took, firstWait-100*time.Millisecond)
	require.Less(t, took, firstWait+10*time.Second)
	require.NoError(t, d.Process("sweep").WaitFor(t.Context(), `"event_type":"sendonce.tick.sweep.v1"`))
}

func TestZombieTaskIsClaimedAgainAfterBackoff(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t, slowBackoff)
	id := d.Submit(toSlow)
	claimed := claimSlow(d, 0)
	require.Len(t, claimed, 1)
	again := claimSlow(d, 30)
	late := time.Since(claimed[0].LeaseUntil)
	t.Logf("claimed again %v after the lease", late)
	require.Len(t, again, 1)
	require.Equal(t, id, again[0].TaskID)
	require.Equal(t, 1, again[0].RetryCount)
	require.GreaterOrEqual(t, late, firstWait-100*time.Millisecond)
	require.Less(t, late, firstWait+10*time.Second)
}

func TestBadRetryBackoffStopsTheStart(t *testing.T) {
	t.Parallel()
	p := cluster.StartProcess(t, cluster.Binary(t), cluster.Settings("postgres://nobody@127.0.0.1:1/none", "RETRY_BACKOFF=5s,30s"))
	cluster.WaitExit(t, p)
	require.Equal(t, 2, p.ExitCode())
	require.Contains(t, p.Output(), `RETRY_BACKOFF is "5s,30s" but must say how long the retries of each queue wait, as "wechat=5s,30s,2m,10m;*=0"`)
}
