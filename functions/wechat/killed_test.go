package wechat_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// startCall calls the function and does not wait for the response.
func (c *wechatServer) startCall() {
	var call sync.WaitGroup
	req := c.Request(context.Background(), "POST", "/events/wechat", `{}`, cluster.TickHeader...)
	call.Go(func() {
		if res, err := http.DefaultClient.Do(req); err == nil { // an error means that the process was killed
			_ = res.Body.Close()
		}
	})
	c.T.Cleanup(call.Wait)
}

// startCallWithoutToken starts a call, and returns when the function waits for a token. ClearFaults ends the wait.
func (c *wechatServer) startCallWithoutToken() {
	c.T.Helper()
	c.fake.InjectFault(sandbox.WeChatFault{TokenCalls: true, Delay: time.Hour})
	calls := c.fake.TokenCalls()
	c.startCall()
	c.until("requests a token", func() bool { return c.fake.TokenCalls() == calls+1 })
}

func (c *wechatServer) until(name string, condition func() bool) {
	c.T.Helper()
	cluster.Eventually(c.T, condition, name)
}

func (c *wechatServer) untilDelivered() {
	c.T.Helper()
	c.until("is delivered", func() bool { return len(c.fake.Delivered()) == 1 })
}

// lockTask locks the row of a task.
func (c *wechatServer) lockTask(o subscribe.Submitted) *rowLock {
	c.T.Helper()
	return &rowLock{c, c.db.HoldLock(c.T, `select from task_live where id = $1 for update`, o.TaskID)}
}

type rowLock struct {
	c       *wechatServer
	release func()
}

// Parts of the statements that wait for a locked task.
const (
	markStatement   = "sending_at = case"
	reportStatement = "r (reported_id, reporter"

	waiters = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
)

// until waits until a statement that contains part waits for the lock.
func (k *rowLock) until(part string) {
	k.c.T.Helper()
	k.c.until(part, func() bool {
		return k.c.Count(`select count(*) `+waiters+` and query like '%' || $1 || '%'`, part) > 0
	})
}

// endWaiters ends the sessions that wait for the lock, and releases the lock.
func (k *rowLock) endWaiters() {
	k.c.T.Helper()
	k.c.Exec(`select pg_terminate_backend(pid) ` + waiters)
	k.c.until("ended", func() bool { return k.c.Count(`select count(*) `+waiters) == 0 })
	k.release()
}

// killAt locks the task, clears the faults, and kills the function when a statement that contains part waits for the lock. The
// task stays locked.
func (c *wechatServer) killAt(o subscribe.Submitted, part string) *rowLock {
	c.T.Helper()
	lock := c.lockTask(o)
	c.fake.ClearFaults()
	lock.until(part)
	c.kill()
	return lock
}

// kill kills the function, and then clears the faults.
func (c *wechatServer) kill() {
	c.T.Helper()
	require.NoError(c.T, c.process.Kill())
	c.fake.ClearFaults()
}

// startSend injects a fault, starts a call, and returns when the function has called WeChat.
func (c *wechatServer) startSend(f sandbox.WeChatFault) {
	c.T.Helper()
	c.fake.InjectFault(f)
	c.startCall()
	c.until("is called", func() bool { return len(c.fake.Sends()) == 1 })
}

// Each step kills the function at a different point of a send. If the task is not yet marked as sending, the next process sends it
// whatever its policy is.
var steps = []struct {
	name   string
	kill   func(c *wechatServer, o subscribe.Submitted)
	marked bool
}{
	{"waiting for a token", func(c *wechatServer, _ subscribe.Submitted) {
		c.startCallWithoutToken()
		c.kill()
	}, false},
	{"before the mark", func(c *wechatServer, o subscribe.Submitted) {
		c.startCallWithoutToken()
		c.killAt(o, markStatement).endWaiters()
	}, false},
	{"after the mark, before the call", func(c *wechatServer, o subscribe.Submitted) {
		c.startCallWithoutToken()
		c.killAt(o, markStatement).release()
		c.until("is marked", func() bool { return c.Count(`select count(*) from task_live where sending_at is not null`) == 1 })
	}, true},
	{"in a call that is lost", func(c *wechatServer, _ subscribe.Submitted) {
		c.startSend(sandbox.WeChatFault{Delay: time.Hour, Drop: true, Times: 1})
		c.kill()
	}, true},
	{"in a call that is delivered later", func(c *wechatServer, _ subscribe.Submitted) {
		c.startSend(sandbox.WeChatFault{Delay: time.Hour, Times: 1})
		c.kill()
		c.untilDelivered()
	}, true},
	{"after the delivery, before the response", func(c *wechatServer, _ subscribe.Submitted) {
		c.startSend(sandbox.WeChatFault{Delay: time.Hour, DeliverFirst: true, Times: 1})
		c.untilDelivered()
		c.kill()
	}, true},
	{"after the response, before the report", func(c *wechatServer, o subscribe.Submitted) {
		c.startSend(sandbox.WeChatFault{Delay: time.Hour, DeliverFirst: true, Times: 1})
		c.untilDelivered()
		c.killAt(o, reportStatement).endWaiters()
	}, true},
}

// terminate sends SIGTERM to the function, clears the faults when the function is draining, and requires that it exits with 0.
func (c *wechatServer) terminate() {
	c.T.Helper()
	exited := make(chan int, 1)
	go func() {
		code, err := c.process.Terminate(cluster.WaitLimit)
		if err != nil {
			code = -1
		}
		exited <- code
	}()
	require.NoError(c.T, c.process.WaitFor(c.T.Context(), `"draining"`))
	c.fake.ClearFaults()
	require.Zero(c.T, <-exited, c.process.Output())
}

// finish repeatedly ends all leases and calls the function, until each task is final or held.
func (c *wechatServer) finish() {
	c.T.Helper()
	c.until("each task is final or held", func() bool {
		c.db.ExpireLeases(c.T)
		c.run()
		return c.Count(`select count(*) from task_live where state <> 3`) == 0
	})
	require.LessOrEqual(c.T, len(c.fake.Sends()), c.Count(`select count(*) from send_logs`), "there are at most as many calls as claims")
}

// Each step is tested with the policy hold. The other two policies are tested at one step each, because the tests of the store
// cover what each policy does when a lease ends.
func TestKilledFunctionFollowsPolicy(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		policies := []task.Policy{task.Hold}
		switch step.name {
		case "in a call that is lost":
			policies = append(policies, task.Resend)
		case "after the response, before the report":
			policies = append(policies, task.Fail)
		}
		for _, policy := range policies {
			t.Run(fmt.Sprintf("%s, %s", step.name, policy), func(t *testing.T) {
				t.Parallel()
				c := startWeChat(t, sandbox.WeChatOptions{OneTime: true}, "WECHAT_TIMEOUT=10s")
				c.fake.Grant("ann", "T1", 1)
				o := c.submit(1, func(s *subscribe.Submission) { s.OnUnknown = policy })
				step.kill(c, o)
				before := len(c.fake.Sends())
				c.start()
				c.finish()
				got, sends := c.outcome(o), len(c.fake.Sends())
				switch {
				case !step.marked:
					require.Equal(t, "succeeded, retries 1; row 1; calls 1, delivered 1", got)
				case policy == task.Resend:
					require.Contains(t, got, "succeeded, retries 1; row 1")
					require.Equal(t, before+1, sends)
					require.Len(t, c.fake.Delivered(), 1)
				case policy == task.Hold:
					require.Contains(t, got, "held, retries 0; row 0 timeout_held;")
					require.Equal(t, before, sends, "the message is not sent again")
				default:
					require.Contains(t, got, "failed/unknown, retries 0; row 2 timeout_failed;")
					require.Equal(t, before, sends, "the message is not sent again")
				}
			})
		}
	}
}

func TestRepeatedlyKilledFunctionsFollowPolicies(t *testing.T) {
	t.Parallel()
	const messages, kills = 90, 8
	c := startWeChat(t, sandbox.WeChatOptions{OneTime: true}, "WECHAT_CONCURRENCY=5")
	c.fake.InjectFault(sandbox.WeChatFault{Delay: 5 * time.Millisecond, DeliverFirst: true})
	policies := map[string]task.Policy{}
	for n := range uint64(messages) {
		user := fmt.Sprint("user-", n)
		policies[user] = task.Policy(n % 3)
		c.fake.Grant(user, "T1", 1)
		c.submit(n, func(s *subscribe.Submission) { s.ReceiverOpenID, s.OnUnknown = user, policies[user] })
	}
	for range kills {
		other := *c
		other.start()
		before := len(c.fake.Sends())
		c.startCall()
		other.startCall()
		c.until("some are sent", func() bool {
			return len(c.fake.Sends()) > before+3 || c.Count(`select count(*) from task_live where state in (1, 2)`) == 0
		})
		require.NoError(t, c.process.Kill())
		require.NoError(t, other.process.Kill())
		c.db.ExpireLeases(c.T)
		c.start()
	}
	c.finish()
	calls, delivered := map[string]int{}, map[string]int{}
	for _, s := range c.fake.Sends() {
		calls[s.OpenID]++
	}
	for _, s := range c.fake.Delivered() {
		delivered[s.OpenID]++
	}
	for user, policy := range policies {
		if policy != task.Resend {
			require.LessOrEqual(t, calls[user], 1, user)
		}
	}
	require.Equal(t, messages, c.Count(`select count(*) from task_done`)+c.Count(`select count(*) from task_live where state = 3`))
	require.Zero(t, c.Count(`select count(*) from subscribe_message_logs g where send_status = 1 and receiver_openid <> all($1)`, slices.Collect(maps.Keys(delivered))), "each message with status sent is delivered")
	t.Logf("%d messages, %d calls, %d delivered, %d without consent, %d held, %d failed", messages, len(c.fake.Sends()), len(c.fake.Delivered()),
		c.Count(`select count(*) from task_done where status = 3 and error_code = '43101'`), c.Count(`select count(*) from task_live`),
		c.Count(`select count(*) from task_done where status = 3`))
}

func TestDrainingFunctionFinishesItsSendsAndReleasesRest(t *testing.T) {
	t.Parallel()
	t.Run("sending", func(t *testing.T) {
		t.Parallel()
		c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s", "WECHAT_CONCURRENCY=1")
		sending, unclaimed := c.submit(1), c.submit(2)
		c.startSend(sandbox.WeChatFault{Delay: time.Hour, Times: 1})
		c.terminate()
		require.Equal(t, "succeeded, retries 0; row 1; calls 1, delivered 1", c.outcome(sending))
		require.Equal(t, "pending, retries 0; row 0; calls 1, delivered 1", c.outcome(unclaimed))
	})
	t.Run("not started", func(t *testing.T) {
		t.Parallel()
		c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s")
		claimed := c.submit(1)
		c.startCallWithoutToken()
		c.terminate()
		require.Equal(t, "pending, retries 0; row 0 not_sent; calls 0, delivered 0", c.outcome(claimed))
	})
}
