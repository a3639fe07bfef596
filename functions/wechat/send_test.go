package wechat_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// claimAsOther claims the one pending task as another instance.
func (c *wechatServer) claimAsOther() tasks.Claimed {
	c.T.Helper()
	claimed := c.db.Claim(c.T, func(r *tasks.ClaimRequest) { r.Queue, r.AppID, r.MarksSending = task.WeChatQueue, "another", true })
	require.Len(c.T, claimed, 1)
	return claimed[0]
}

// expireAndSweep ends all leases, and settles their tasks as sweep does.
func (c *wechatServer) expireAndSweep() {
	c.T.Helper()
	c.db.ExpireLeases(c.T)
	_, err := c.db.Tasks.Sweep(c.T.Context(), 100)
	require.NoError(c.T, err)
}

func TestMessageDeliveredByAnotherSendIsNotSent(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{})
	change := func(s *subscribe.Submission) { s.OnUnknown = task.Fail }
	first := c.submit(1, change)
	claimed := c.claimAsOther()
	_, err := c.db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: claimed.ID, AppID: "another", ClaimID: claimed.ClaimID, Lease: time.Minute, Sending: true}, nil)
	require.NoError(t, err)
	c.expireAndSweep()
	second := c.submit(1, change)
	require.Equal(t, first.ID, second.ID)
	c.db.MustReport(t, task.Report{TaskID: claimed.ID, AppID: "another", ClaimID: claimed.ClaimID})
	c.run()
	require.Equal(t, "succeeded, retries 0; row 1; calls 0, delivered 0", c.outcome(first))
	require.Equal(t, "failed/rejected, retries 0; row 1; calls 0, delivered 0", c.outcome(second))
	require.Equal(t, "ALREADY_SENT", c.db.MustTask(t, second.TaskID).ErrorCode)
}

func TestTwoCallsSendAtOnceAndTheThirdWaits(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s", "WECHAT_CONCURRENCY=1")
	for n := range uint64(3) {
		c.submit(n + 1)
	}
	c.fake.InjectFault(sandbox.WeChatFault{Delay: time.Hour})
	for range 3 {
		c.startCall()
	}
	c.until("two calls send", func() bool { return len(c.fake.Sends()) == 2 })
	require.Equal(t, 1, c.Count(`select count(*) from task_live where state = 1`), "the third call has claimed nothing")
	require.Equal(t, 200, c.Get("/healthz").Status)
	c.fake.ClearFaults()
	c.until("all messages are sent", func() bool { return c.Count(`select count(*) from task_done`) == 3 })
	require.Len(t, c.fake.Delivered(), 3)
}

func TestTaskOfLostClaimIsNotSent(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s")
	o := c.submit(1)
	c.startCallWithoutToken()
	c.expireAndSweep()
	c.claimAsOther()
	c.fake.ClearFaults()
	require.NoError(t, c.process.WaitFor(t.Context(), `"lost":1`))
	require.Equal(t, "processing, retries 1; row 0 timeout_retry; calls 0, delivered 0", c.outcome(o))
}

func TestReportIsRetriedAfterDatabaseError(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_TIMEOUT=10s")
	o := c.submit(1)
	c.startSend(sandbox.WeChatFault{Delay: time.Hour, DeliverFirst: true})
	c.untilDelivered()
	lock := c.lockTask(o)
	c.fake.ClearFaults()
	lock.until(reportStatement)
	c.until("the statement times out", func() bool { return c.Count(`select count(*) `+waiters) == 0 })
	lock.until(reportStatement)
	lock.release()
	c.until("reported", func() bool { return c.Count(`select count(*) from task_done`) == 1 })
	require.Equal(t, "succeeded, retries 0; row 1; calls 1, delivered 1", c.outcome(o))
}

func TestTaskWithoutSubscribeMessageFails(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{})
	o := c.submit(1)
	c.Exec(`delete from subscribe_message_sends`)
	c.run()
	failed := c.db.MustTask(t, o.TaskID)
	require.Equal(t, task.Failed, failed.State)
	require.Equal(t, "no_message", failed.ErrorCode)
	require.Empty(t, c.fake.Sends())
}

func TestWithoutAppNothingIsSent(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_APP_ID=")
	c.submit(1)
	before := c.logged(slog.LevelInfo)
	for range 3 {
		c.run()
	}
	cluster.Eventually(t, func() bool { return c.logged(slog.LevelInfo) == before+1+3 }, "one line about the missing app id, and one for each call")
	require.Equal(t, 1, strings.Count(c.process.Output(), "WECHAT_APP_ID is not set"))
	require.Equal(t, 1, c.Count(`select count(*) from task_live where state = 1`))
	require.Zero(t, c.fake.TokenCalls())
}

func TestBadWeChatSettingsStopTheStart(t *testing.T) {
	t.Parallel()
	p := cluster.StartProcess(t, cluster.Binary(t), cluster.Settings("postgres://nobody@127.0.0.1:1/none",
		"WECHAT_APP_ID=wx1", "WECHAT_BASE_URL=api.weixin.qq.com", "WECHAT_TIMEOUT=11s", "WECHAT_CONCURRENCY=0"))
	cluster.WaitExit(t, p)
	require.Equal(t, 2, p.ExitCode())
	for _, text := range []string{
		"WECHAT_APP_SECRET must be set together with WECHAT_APP_ID", `WECHAT_BASE_URL is "api.weixin.qq.com" but must be a URL such as`,
		`WECHAT_TIMEOUT is "11s" but must be between 1s and 10s`, `WECHAT_CONCURRENCY is "0" but must be between 1 and 500`,
	} {
		require.Contains(t, p.Output(), text)
	}
}

// A trigger calls the function for a new message, a due retry, and the end of a pause.
func TestWakeUpsAloneSendMessages(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	fake := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	o.StartTrigger(o.Start("", "WECHAT_BASE_URL="+fake.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret, "RETRY_BACKOFF=wechat=1s"))
	c := &wechatServer{Client: o.Admin, fake: fake}
	c.db = storetest.OpenAt(t, o.DatabaseURL)
	wake := func(subject string) {
		t.Helper()
		_, err := o.JetStream().Publish(t.Context(), subject, []byte("1"))
		require.NoError(t, err)
	}
	cluster.Eventually(t, func() bool { _, err := o.JetStream().Stream(t.Context(), "WAKE"); return err == nil })
	waitDelivered := func(n int) {
		t.Helper()
		c.until("delivered", func() bool { return len(fake.Delivered()) == n && c.Count(`select count(*) from task_live`) == 0 })
	}
	c.submit(1)
	wake("wake.queue.wechat")
	waitDelivered(1)

	fake.InjectFault(errcodeFault(-1, 1))
	c.submit(2)
	wake("wake.queue.wechat")
	waitDelivered(2)

	fake.InjectFault(errcodeFault(45009, 1))
	waiting := c.submit(3)
	wake("wake.queue.wechat")
	c.until("paused", func() bool { return c.Count(`select count(*) from queue_pauses`) == 1 })
	c.until("released", func() bool { return c.Count(`select count(*) from task_live where state = 1`) == 1 })
	require.Len(t, fake.Delivered(), 2, c.outcome(waiting))
	c.Exec(`update queue_pauses set until = now()`)
	wake("wake.sweep")
	waitDelivered(3)
}

// The trigger repeats a failed call with growing delays. With a wake-up, the next call would come without a delay.
func TestFailingFunctionDoesNotWakeItself(t *testing.T) {
	t.Parallel()
	broker := cluster.NewNATS(t)
	c := startWeChat(t, sandbox.WeChatOptions{}, "NATS_URL="+broker.URL())
	nc, err := nats.Connect(broker.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	wakeUps, err := nc.SubscribeSync("wake.>")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	c.submit(1, func(s *subscribe.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	c.Exec(`update task_live set due_at = now() - interval '1 second'`)
	c.Exec(`revoke insert on send_logs from sendonce_hot`)
	require.Equal(t, 500, c.Tick("wechat").Status)
	require.Equal(t, 1, c.Count(`select count(*) from task_live where state = 1`), "the claim made the due task pending before it failed")
	_, err = c.process.Terminate(cluster.WaitLimit) // before it ends, the process publishes the wake-ups that are still queued
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	for {
		m, err := wakeUps.NextMsg(time.Millisecond)
		if err != nil {
			require.ErrorIs(t, err, nats.ErrTimeout)
			break
		}
		require.NotEqual(t, bus.WakeWeChat, m.Subject)
	}
}

// submitUnknown submits a message and calls the function. The message is delivered, but WeChat's response is lost.
func (c *wechatServer) submitUnknown() subscribe.Submitted {
	c.T.Helper()
	c.fake.Grant("ann", "T1", 1)
	c.fake.InjectFault(sandbox.WeChatFault{Drop: true, DeliverFirst: true, Times: 1})
	o := c.submit(1, func(s *subscribe.Submission) { s.OnUnknown = task.Fail })
	c.run()
	require.Equal(c.T, "failed/unknown, retries 0; row 2 no_answer; calls 1, delivered 1", c.outcome(o))
	return o
}

// The first attempt cannot have used the consent to the other template.
func TestMissingConsentToOtherTemplateIsFailure(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{OneTime: true})
	c.submitUnknown()
	o := c.submit(1, func(s *subscribe.Submission) { s.TemplateID = "T2" })
	c.run()
	require.Equal(t, "failed/rejected, retries 0; row 2 43101; calls 2, delivered 1", c.outcome(o))
}

func TestMessageReportedSentDuringTokenFetchIsNotSent(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{})
	first := c.submitUnknown()
	failed := c.db.MustTask(t, first.TaskID)
	c.Exec(`delete from provider_tokens`)
	c.start() // without a cached token
	second := c.submit(1)
	c.startCallWithoutToken()

	reported := c.db.MustReport(t, task.Report{TaskID: first.TaskID, AppID: failed.AppID, CallerID: task.ServiceCaller, ClaimID: failed.ClaimID})
	require.Equal(t, task.Applied, reported.Verdict)
	c.fake.ClearFaults()
	c.until("the second send is settled", func() bool { return c.Count(`select count(*) from task_live where state = 2`) == 0 })
	require.Len(t, c.fake.Sends(), 1, "the message is not sent again")
	require.Equal(t, task.SubscribeSent, c.db.MustLog(t, second.ID).Status)
}
