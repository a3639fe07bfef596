package wechat_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// works has a function work, whether or not it lives to answer.
func works(url string) error {
	req, err := http.NewRequest(http.MethodPost, url+"/events/wechat", strings.NewReader(`{}`))
	if err != nil {
		return err
	}
	req.SetBasicAuth("admin", "secret")
	for name, value := range map[string]string{"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": "tick"} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// begin has the function work and does not wait for it.
func (c *wechatServer) begin() {
	var work sync.WaitGroup
	url := c.URL
	work.Go(func() { _ = works(url) }) // it is about to be killed
	c.T.Cleanup(work.Wait)
}

func (c *wechatServer) until(what string, is func() bool) {
	c.T.Helper()
	cluster.Eventually(c.T, is, what)
}

// keep holds the row of the order's task, so that whatever is to change it waits,
// until the kept is let go.
func (c *wechatServer) keep(o subscribe.Submitted) *lock {
	c.T.Helper()
	conn, err := pgx.ConnectConfig(c.T.Context(), c.Owner.Config())
	require.NoError(c.T, err)
	c.T.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(c.T.Context())
	require.NoError(c.T, err)
	_, err = tx.Exec(c.T.Context(), `select from task_live where id = $1 for update`, o.TaskID)
	require.NoError(c.T, err)
	return &lock{c, tx}
}

type lock struct {
	c  *wechatServer
	tx pgx.Tx
}

const waiters = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`

// until waits until a statement with this text waits for the row.
func (k *lock) until(statement string) {
	k.c.T.Helper()
	k.c.until(statement, func() bool {
		return k.c.Count(`select count(*) `+waiters+` and query like '%' || $1 || '%'`, statement) > 0
	})
}

// letGo lets those have the row who wait for it.
func (k *lock) letGo() { require.NoError(k.c.T, k.tx.Rollback(k.c.T.Context())) }

// drop has nobody get the row who waits for it.
func (k *lock) drop() {
	k.c.T.Helper()
	k.c.Exec(`select pg_terminate_backend(pid) ` + waiters)
	k.c.until("ended", func() bool { return k.c.Count(`select count(*) `+waiters) == 0 })
	k.letGo()
}

// steps brings the function to a point of its work, kills it there, and lets
// WeChat go on. Each says whether another process can know that nothing was sent.
var steps = []struct {
	name string
	kill func(c *wechatServer, o subscribe.Submitted)
	safe bool
}{
	{"while it fetches the token", func(c *wechatServer, _ subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: time.Hour})
		c.begin()
		c.until("asks for a token", func() bool { return c.fake.TokenCalls() == 1 })
		c.killed()
	}, true},
	{"before it marks the task", func(c *wechatServer, o subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: time.Hour})
		c.begin()
		c.until("asks for a token", func() bool { return c.fake.TokenCalls() == 1 })
		row := c.keep(o)
		c.fake.ClearFaults()
		row.until("sending_at = case")
		c.killed()
		row.drop()
	}, true},
	{"once the task is marked, before the call", func(c *wechatServer, o subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: time.Hour})
		c.begin()
		c.until("asks for a token", func() bool { return c.fake.TokenCalls() == 1 })
		row := c.keep(o)
		c.fake.ClearFaults()
		row.until("sending_at = case")
		c.killed()
		row.letGo()
		c.until("is marked", func() bool { return c.Count(`select count(*) from task_live where sending_at is not null`) == 1 })
	}, false},
	{"in the call, which WeChat never takes", func(c *wechatServer, _ subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour, Drop: true, Times: 1})
		c.begin()
		c.until("is called", func() bool { return len(c.fake.Sends()) == 1 })
		c.killed()
	}, false},
	{"in the call, which WeChat takes afterwards", func(c *wechatServer, _ subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour, Times: 1})
		c.begin()
		c.until("is called", func() bool { return len(c.fake.Sends()) == 1 })
		c.killed()
		c.until("is delivered", func() bool { return len(c.fake.Delivered()) == 1 })
	}, false},
	{"after the delivery, before the answer", func(c *wechatServer, _ subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour, After: true, Times: 1})
		c.begin()
		c.until("is delivered", func() bool { return len(c.fake.Delivered()) == 1 })
		c.killed()
	}, false},
	{"after the answer, before the report", func(c *wechatServer, o subscribe.Submitted) {
		c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour, After: true, Times: 1})
		c.begin()
		c.until("is delivered", func() bool { return len(c.fake.Delivered()) == 1 })
		row := c.keep(o)
		c.fake.ClearFaults()
		row.until("from task_live l where l.id = any")
		c.killed()
		row.drop()
	}, false},
}

// killed kills the function, and then clears the faults of WeChat.
func (c *wechatServer) killed() {
	c.T.Helper()
	require.NoError(c.T, c.at.Kill())
	c.fake.ClearFaults()
}

// finish lets all leases end and has the function work until it has nothing in
// hand any more.
func (c *wechatServer) finish() {
	c.T.Helper()
	c.until("nothing is in flight", func() bool {
		c.Exec(`update task_live set due_at = now() where state = 2`)
		c.work()
		return c.Count(`select count(*) from task_live where state <> 3`) == 0
	})
	require.LessOrEqual(c.T, len(c.fake.Sends()), c.Count(`select count(*) from send_logs`), "no more calls than claims")
}

func TestKilledFunctionSendsOnceIfAsked(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		for _, policy := range []task.Policy{task.Resend, task.Hold, task.Fail} {
			t.Run(fmt.Sprintf("%s, %s", step.name, policy), func(t *testing.T) {
				t.Parallel()
				c := startWeChat(t, sandbox.WeChatOptions{OneTime: true}, "WECHAT_TIMEOUT=10s")
				c.fake.Grant("ann", "T1", 1)
				o := c.order(1, func(s *subscribe.Submission) { s.OnUnknown = policy })
				step.kill(c, o)
				before := len(c.fake.Sends())
				c.open()
				c.finish()
				got, now := c.fate(o), len(c.fake.Sends())
				t.Log(got)
				require.LessOrEqual(t, len(c.fake.Delivered()), 1, "a grant of one")
				switch {
				case step.safe:
					require.Equal(t, "succeeded, retries 1; row 1; asked 1, delivered 1", got)
				case policy == task.Resend:
					require.Contains(t, got, "succeeded, retries 1; row 1")
					require.Equal(t, before+1, now)
					require.Len(t, c.fake.Delivered(), 1)
				case policy == task.Hold:
					require.Contains(t, got, "held, retries 0; row 0 timeout_held;")
					require.Equal(t, before, now, "not once more")
				default:
					require.Contains(t, got, "failed/unknown, retries 0; row 2 timeout_failed;")
					require.Equal(t, before, now, "not once more")
				}
			})
		}
	}
}

// Two functions work and die again and again.
func TestFunctionsKilledRepeatedlyKeepPromises(t *testing.T) {
	t.Parallel()
	const orders, kills = 90, 8
	c := startWeChat(t, sandbox.WeChatOptions{OneTime: true}, "WECHAT_CONCURRENCY=5")
	c.fake.InjectFault(sandbox.WeChatFault{Delay: 5 * time.Millisecond, After: true})
	policies := map[string]task.Policy{}
	for n := range uint64(orders) {
		user := fmt.Sprint("user-", n)
		policies[user] = task.Policy(n % 3)
		c.fake.Grant(user, "T1", 1)
		c.order(n, func(s *subscribe.Submission) { s.ReceiverOpenID, s.OnUnknown = user, policies[user] })
	}
	for range kills {
		other := *c
		other.open()
		begun := len(c.fake.Sends())
		c.begin()
		other.begin()
		c.until("some are sent", func() bool {
			return len(c.fake.Sends()) > begun+3 || c.Count(`select count(*) from task_live where state in (1, 2)`) == 0
		})
		require.NoError(t, c.at.Kill())
		require.NoError(t, other.at.Kill())
		c.Exec(`update task_live set due_at = now() where state = 2`)
		c.open()
	}
	c.finish()
	asked, delivered := map[string]int{}, map[string]int{}
	for _, s := range c.fake.Sends() {
		asked[s.OpenID]++
	}
	for _, s := range c.fake.Delivered() {
		delivered[s.OpenID]++
	}
	for user, policy := range policies {
		require.LessOrEqual(t, delivered[user], 1, user)
		if policy != task.Resend {
			require.LessOrEqual(t, asked[user], 1, user)
		}
	}
	require.Equal(t, orders, c.Count(`select count(*) from task_done`)+c.Count(`select count(*) from task_live where state = 3`))
	require.Zero(t, c.Count(`select count(*) from subscribe_message_logs g where send_status = 1 and receiver_openid <> all($1)`, slices.Collect(maps.Keys(delivered))), "what is said to be sent is delivered")
	t.Logf("%d orders, %d calls, %d delivered, %d inferred, %d held, %d failed as unknown", orders, len(c.fake.Sends()), len(c.fake.Delivered()),
		c.Count(`select count(*) from task_done where status = 2 and error_code = '43101'`), c.Count(`select count(*) from task_live`),
		c.Count(`select count(*) from task_done where status = 3`))
}

func TestThreeProcessesFetchOneToken(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=5")
	all := []*wechatServer{c, new(wechatServer), new(wechatServer)}
	for _, other := range all[1:] {
		*other = *c
		other.open()
	}
	everybody := func(calls, first uint64) {
		for n := range uint64(60) {
			c.order(first + n)
		}
		c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: 200 * time.Millisecond})
		var busy sync.WaitGroup
		for _, one := range all {
			busy.Go(func() {
				if err := works(one.URL); err != nil {
					t.Error(err)
				}
			})
		}
		busy.Wait()
		require.EqualValues(t, calls, c.fake.TokenCalls())
		require.Len(t, c.fake.Delivered(), int(first)+60)
	}
	everybody(1, 0)
	require.Equal(t, 3, c.Count(`select count(distinct app_id) from task_done`), "each had its share")
	c.fake.ExpireTokens()
	everybody(2, 60)
}

func TestEndingFunctionFinishesItsSendsAndReleasesRest(t *testing.T) {
	t.Parallel()
	t.Run("sending", func(t *testing.T) {
		t.Parallel()
		c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s", "WECHAT_CONCURRENCY=1")
		c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour, Times: 1})
		sending, rest := c.order(1), c.order(2)
		c.begin()
		c.until("is called", func() bool { return len(c.fake.Sends()) == 1 })
		c.ends()
		require.Equal(t, "succeeded, retries 0; row 1; asked 1, delivered 1", c.fate(sending))
		require.Equal(t, "pending, retries 0; row 0; asked 1, delivered 1", c.fate(rest))
	})
	t.Run("not begun", func(t *testing.T) {
		t.Parallel()
		c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s")
		c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: time.Hour})
		claimed := c.order(1)
		c.begin()
		c.until("asks for a token", func() bool { return c.fake.TokenCalls() == 1 })
		c.ends()
		require.Equal(t, "pending, retries 0; row 0 not_sent; asked 0, delivered 0", c.fate(claimed))
	})
}

// ends has the function end in peace, and WeChat answer once it is about to.
func (c *wechatServer) ends() {
	c.T.Helper()
	ended := make(chan int, 1)
	go func() {
		code, err := c.at.Terminate(cluster.WaitLimit)
		if err != nil {
			code = -1
		}
		ended <- code
	}()
	require.NoError(c.T, c.at.WaitFor(c.T.Context(), `"draining"`))
	c.fake.ClearFaults()
	require.Zero(c.T, <-ended, c.at.Output())
}
