package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// deliveryLease is the lease of a claimed delivery. When the lease ends, the function deliver is woken again.
const deliveryLease = 30 * time.Second

// quietTime returns how long nothing may happen: 3 s, or SENDONCE_IDLE_SECONDS.
func quietTime(t *testing.T) time.Duration {
	return secondsFrom(t, "SENDONCE_IDLE_SECONDS", 3*time.Second)
}

// invocations counts the calls of event functions that the processes logged.
func invocations(c *cluster.Cluster) map[string]int {
	calls := map[string]int{}
	for _, p := range c.Processes() {
		for line := range strings.Lines(p.Output()) {
			var entry struct{ Msg, Function, Route string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "call" && strings.HasPrefix(entry.Route, "POST /events/") {
				calls[entry.Function]++
			}
		}
	}
	return calls
}

// isSettled reports whether no wake-up is scheduled for a time before limit, none is pending, and none is in progress. It
// checks these states in the order in which a wake-up passes them, so it misses none.
func isSettled(c *cluster.Cluster, wake jetstream.Stream, limit time.Time) bool {
	info, err := wake.Info(c.T.Context(), jetstream.WithSubjectFilter("sched.>"))
	if err != nil {
		return false
	}
	for subject := range info.State.Subjects {
		due, err := strconv.ParseInt(subject[strings.LastIndexByte(subject, '.')+1:], 10, 64)
		if err == nil && time.Unix(due, 0).Before(limit) { // an error means that the subject is that of a tick, which has no time
			return false
		}
	}
	for consumer := range wake.ListConsumers(c.T.Context()).Info() {
		if consumer.NumPending > 0 || consumer.NumAckPending > 0 {
			return false
		}
	}
	// The numbers above leave out a wake-up in progress that a newer one has replaced. But its call executes statements.
	return time.Since(c.Admin.LastStatementAt()) > time.Second
}

// waitIdle waits until all work is done, and requires that nothing happens during the quietTime after that. It returns
// how many calls each event function got before the quietTime.
func waitIdle(c *cluster.Cluster, statements *atomic.Int64) map[string]int {
	c.T.Helper()
	wake, err := c.JetStream().Stream(c.T.Context(), "WAKE")
	require.NoError(c.T, err)
	quiet := quietTime(c.T)
	require.Eventually(c.T, func() bool { return isSettled(c, wake, time.Now().Add(quiet+time.Second)) }, cluster.WaitLimit+deliveryLease, 100*time.Millisecond)
	calls := invocations(c)
	before := statements.Load()
	require.NotZero(c.T, before)

	// No condition shows that nothing will happen, so time must pass.
	<-time.After(quiet)
	after := statements.Load()
	c.T.Logf("in %v: %d calls of event functions (%v before), %d statements (%d before)",
		quiet, sum(invocations(c))-sum(calls), calls, after-before, before)
	require.Equal(c.T, calls, invocations(c))
	require.Equal(c.T, before, after)
	return calls
}

// An alert is raised and cleared, tasks and messages are sent, and then nothing happens.
func TestIdleSystemCallsNothing(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	c := cluster.New(t)
	proxy := sandbox.NewProxy(t, c.DatabaseURL)
	var statements atomic.Int64
	proxy.LoseResponse(func(string) bool {
		statements.Add(1)
		return false // the proxy only counts statements, and loses no response
	})
	wechat := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	c.StartEach("DATABASE_URL="+proxy.URL(), "ALERT_BACKLOG=bulk=1;*=5", "ALERT_WINDOW=10s",
		"WECHAT_BASE_URL="+wechat.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret)
	ops, shop := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	secret := c.AddEndpoint(ops.URL, "alert.raised", "alert.cleared").Secret
	c.AddEndpoint(shop.URL, "task.succeeded")
	_, err := c.API("submit").SendBatch(t.Context(), slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "hi"}}, 6))
	require.NoError(t, err)
	raised, data := ops.AlertEvent(t, 1, secret)
	require.Equal(t, api.AlertEventData{AlertID: raised.Subject, Kind: "backlog", Queue: "default", Value: 6, Threshold: 5, Since: data.Since}, data)
	_, err = cluster.ClaimAll(c.API("claim"))
	require.NoError(t, err)
	cleared, _ := ops.AlertEvent(t, 2, secret)
	require.Equal(t, []string{"sendonce.alert.cleared.v1", raised.Subject}, []string{cleared.Type, cleared.Subject})
	c.Admin.Exec(`update task_live set due_at = now() + interval '1 hour'`) // no lease expires during the test

	finished := c.FinishTasks(3)
	c.WaitMessage(c.Save("msg.orders.paid", cluster.WithoutConfirm), "sent")
	cluster.WaitAllDelivered(c, 2+3)
	calls := waitIdle(c, &statements)
	for _, function := range []string{"sweep", "relay", "deliver", "wechat"} {
		require.NotZero(t, calls[function], function)
	}
	require.Zero(t, wechat.TokenCalls(), "there was no subscribe message to send")
	require.Equal(t, 2, ops.Calls())

	finished = append(finished, c.FinishTasks(1)...)
	cluster.WaitAllDelivered(c, 2+4) // the system still works
	shop.RequireEachOnce(t, finished)
}

func sum(counts map[string]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}
