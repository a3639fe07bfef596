package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// startOnPair migrates the database of a pair (a primary Postgres and a standby), and starts a cluster on it. env is added
// to the settings of the cluster.
func startOnPair(t *testing.T, pair *sandbox.Pair, env ...string) *cluster.Cluster {
	t.Helper()
	url, bin := pair.URL("postgres"), cluster.Binary(t)
	migrate := cluster.StartProcess(t, bin, cluster.Settings(url), "migrate")
	cluster.WaitExit(t, migrate)
	require.Zero(t, migrate.ExitCode(), migrate.Output())
	// With TWO_PHASE_FAIL_OPEN, a message that cannot be accepted would be saved at once, before messages that were
	// accepted earlier.
	return cluster.NewOn(t, url).StartEach(append(env, "TWO_PHASE_ENABLED=true", "TWO_PHASE_FAIL_OPEN=false")...)
}

// throughPgBouncer starts a PgBouncer, and returns settings with which functions reach the current primary of a pair
// through the PgBouncer.
func throughPgBouncer(t *testing.T, pair *sandbox.Pair) []string {
	t.Helper()
	bouncer := sandbox.NewPgBouncerTo(t, pair.Service(t).URL())
	return []string{"DATABASE_URL=" + bouncer.URL("postgres"), "SENDONCE_DATABASE_POOLER=true"}
}

// callFunctions calls each function below once, and requires the status 200 or 404, or 204 for a tick. It does not call
// relay: the load makes the trigger call relay, and if two calls of relay ran at the same time, one could publish a
// message before an older message of the same sender.
func callFunctions(c *cluster.Cluster) {
	c.T.Helper()
	for function, path := range map[string]string{
		"submit": "/api/v1/sms/by-key/none", "admin": "/api/v1/admin/statistics", "webhooks": "/api/v1/webhooks/deliveries", "subscribe": "/api/v1/subscribe/failures",
		"claim": "/api/v1/sms/tasks/pending?app_id=visitor&queue=visited", "messages": cluster.MessagesPath + "/stuck?kind=sent",
	} {
		got := c.At(c.Address(function)).Get(path)
		require.Contains(c.T, []int{200, 404}, got.Status, "%s: %s\n%s", function, got.Text, c.Process(function).Output())
	}
	for _, function := range []string{"sweep", "deliver", "save", "wechat"} {
		got := c.At(c.Address(function)).Tick(function)
		require.Equal(c.T, 204, got.Status, "%s: %s", function, got.Text)
	}
}

func TestFailoverLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	direct := func(*testing.T, *sandbox.Pair) []string { return nil }
	for _, route := range []struct {
		name string
		env  func(*testing.T, *sandbox.Pair) []string
	}{{"directly", direct}, {"through PgBouncer", throughPgBouncer}} {
		for _, fault := range []struct {
			name    string
			inject  func(*sandbox.Pair)
			refused []string // kinds of calls that must fail before the standby is promoted
		}{
			{"killed", (*sandbox.Pair).KillPrimary, []string{"submit", "claim or report", "read", "saved message"}},
			// Calls that change data do not fail yet: they wait until it is known whether they were committed.
			{"shut down", (*sandbox.Pair).StopPrimary, []string{"read"}},
		} {
			t.Run(fmt.Sprintf("primary reached %s is %s", route.name, fault.name), func(t *testing.T) {
				pair := sandbox.NewPair(t)
				failOver(t, pair, startOnPair(t, pair, route.env(t, pair)...), fault.inject, fault.refused)
			})
		}
	}
}

// failOver puts a cluster under load, injects a fault into its primary, promotes the standby, and compares all responses
// with the database.
func failOver(t *testing.T, pair *sandbox.Pair, c *cluster.Cluster, inject func(*sandbox.Pair), refused []string) {
	shop := cluster.NewReceiver(t, nil)
	c.WaitMessage(c.Save("msg.orders.paid", cluster.WithoutConfirm), "sent") // shows that the functions and the trigger work
	c.AddEndpoint(shop.URL)
	callFunctions(c)
	l := startCallLoad(c)
	l.waitProgress(50)
	woken := make(chan []api.ClaimedTask, 1)
	go func() {
		wait := 30
		claim := c.API("claim")
		claim.Tries = 1
		tasks, err := claim.Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "waiter", Queue: "quiet", Wait: &wait})
		if err != nil {
			t.Errorf("the waiting claim: %v", err)
		}
		woken <- tasks
	}()
	l.waitProgress(5) // by then the claim waits
	inject(pair)
	ctx, cancel := context.WithTimeout(t.Context(), cluster.WaitLimit)
	defer cancel()
	require.NoError(t, l.WaitFailed(ctx, 1, refused...))
	pair.Promote()
	promoted := time.Now()
	l.waitProgress(1)
	t.Logf("each kind of call succeeded within %v of the promotion", time.Since(promoted).Round(time.Millisecond))
	callFunctions(c)
	key := api.NewKey()
	sent, err := c.API("submit").Send(t.Context(), api.SendRequest{PhoneNumber: "13800138000", Content: "hi", Queue: "quiet", IdempotencyKey: key})
	require.NoError(t, err)
	tasks := <-woken
	require.Len(t, tasks, 1, "the claim continues to wait during the failover")
	require.Equal(t, sent.TaskID, tasks[0].TaskID)
	require.NoError(t, l.Submitted(key, sent.TaskID))
	l.Claimed(sent.TaskID, tasks[0].ClaimID.String())
	l.waitProgress(50)
	c.Admin.Connect(c.DatabaseURL)
	l.finish(shop)
}
