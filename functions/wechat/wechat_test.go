package wechat_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// wechatServer is the function wechat as a process, with a new database and a fake WeChat.
type wechatServer struct {
	*cluster.Client
	fake    *sandbox.WeChat
	db      *storetest.DB
	bin     string
	env     []string
	process *sandbox.Process
}

const tea = `{"thing1":{"value":"Tea"}}`

// startWeChat starts a wechatServer. Retries are due at once, unless env sets RETRY_BACKOFF.
func startWeChat(t *testing.T, o sandbox.WeChatOptions, env ...string) *wechatServer {
	t.Helper()
	fake, url := sandbox.NewWeChat(t, o), sandbox.NewDatabase(t)
	c := &wechatServer{Client: cluster.NewClient(t, "").Connect(url), fake: fake, bin: cluster.Binary(t)}
	c.env = append(cluster.Settings(url, "FUNCTION_TARGET=wechat", "WECHAT_BASE_URL="+fake.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID,
		"WECHAT_APP_SECRET="+sandbox.WeChatSecret, "WECHAT_TIMEOUT=2s", "RETRY_BACKOFF=wechat=0"), env...)
	c.db = storetest.OpenAt(t, url)
	c.start()
	return c
}

// start starts a new process of the function.
func (c *wechatServer) start() {
	c.T.Helper()
	c.process = cluster.StartProcess(c.T, c.bin, c.env)
	fresh := *c.Client
	fresh.URL = cluster.Address(c.T, c.process)
	c.Client = &fresh
}

// submit submits the confirmation of booking n.
func (c *wechatServer) submit(n uint64, change ...func(*subscribe.Submission)) subscribe.Submitted {
	c.T.Helper()
	s := storetest.Booking(n, tea)
	s.CallerID, s.TemplateID, s.ReceiverOpenID = 0, "T1", "ann"
	for _, f := range change {
		f(s)
	}
	out := c.db.MustSubscribe(c.T, s)
	require.False(c.T, out.Skipped)
	return out
}

// run calls the function, and requires that the call succeeds.
func (c *wechatServer) run() {
	c.T.Helper()
	done := c.Tick("wechat")
	require.Equal(c.T, 204, done.Status, done.Text)
}

// advance makes scheduled tasks due earlier by d.
func (c *wechatServer) advance(d time.Duration) {
	c.Exec(`update task_live set due_at = due_at - make_interval(secs => $1) where state = 0`, d.Seconds())
}

// outcome returns the state of a message in one line: its task, the status and error code of its row in subscribe_message_logs, and
// the numbers of calls to WeChat and of delivered messages.
func (c *wechatServer) outcome(o subscribe.Submitted) string {
	c.T.Helper()
	now, row := c.db.MustTask(c.T, o.TaskID), c.db.MustLog(c.T, o.ID)
	state := now.State.String()
	if now.Reason != task.NoReason {
		state += "/" + now.Reason.String()
	}
	entry := strings.TrimSpace(fmt.Sprintf("row %d %s", row.Status, row.ErrorCode))
	return fmt.Sprintf("%s, retries %d; %s; calls %d, delivered %d", state, now.RetryCount, entry, len(c.fake.Sends()), len(c.fake.Delivered()))
}

// logged counts the log lines of the process at a level.
func (c *wechatServer) logged(level slog.Level) int {
	return strings.Count(c.process.Output(), `"level":"`+level.String()+`"`)
}

// requireOneError waits until the process has logged an error, and requires that the process has logged only one.
func (c *wechatServer) requireOneError() {
	c.T.Helper()
	cluster.Eventually(c.T, func() bool { return c.logged(slog.LevelError) > 0 })
	require.Equal(c.T, 1, c.logged(slog.LevelError), c.process.Output())
}

// dueIn returns the time until the task of a message is due.
func (c *wechatServer) dueIn(o subscribe.Submitted) time.Duration {
	return time.Duration(c.Count(`select round(extract(epoch from due_at - now()))::int from task_live where id = $1`, o.TaskID)) * time.Second
}

// errcodeFault returns a fault: the next n calls to send a message get the errcode; n = 0 means all calls.
func errcodeFault(errcode, n int) sandbox.WeChatFault {
	return sandbox.WeChatFault{Errcode: errcode, Times: n}
}

// One result of each class, except quotaSpent and misconfigured: see TestSpentQuotaPausesUntilMidnightInShanghai and
// TestWrongAppSettingsPauseTheQueue. client_test.go and token_test.go test the classes of further errcodes.
func TestClassDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	hold := []func(*subscribe.Submission){func(s *subscribe.Submission) { s.OnUnknown = task.Hold }}
	fail := []func(*subscribe.Submission){func(s *subscribe.Submission) { s.OnUnknown = task.Fail }}
	lost := sandbox.WeChatFault{Drop: true, DeliverFirst: true, Times: 1}
	for _, c := range []struct {
		name   string
		fault  sandbox.WeChatFault
		change []func(*subscribe.Submission)
		first  string        // the outcome of one call of the function
		wait   time.Duration // until the retry
		second string        // the outcome of a second call after this wait, without the fault
	}{
		{name: "sent", first: "succeeded, retries 0; row 1; calls 1, delivered 1"},
		{name: "transient", fault: errcodeFault(-1, 1), first: "scheduled, retries 1; row 2 -1; calls 1, delivered 0", wait: 5 * time.Second,
			second: "succeeded, retries 1; row 1; calls 2, delivered 1"},
		{name: "token refused", fault: errcodeFault(42001, 2), first: "scheduled, retries 0; row 0 42001; calls 2, delivered 0", wait: time.Minute,
			second: "succeeded, retries 0; row 1; calls 3, delivered 1"},
		{name: "data refused", fault: errcodeFault(40003, 1), first: "failed/rejected, retries 0; row 2 40003; calls 1, delivered 0"},
		{name: "no consent", fault: errcodeFault(43101, 1), first: "failed/rejected, retries 0; row 2 43101; calls 1, delivered 0"},
		{name: "throttled", fault: errcodeFault(45011, 1), first: "scheduled, retries 0; row 0 45011; calls 1, delivered 0", wait: time.Minute,
			second: "succeeded, retries 0; row 1; calls 2, delivered 1"},
		{name: "unknown, resend", fault: lost, first: "scheduled, retries 1; row 0 no_answer; calls 1, delivered 1", wait: 5 * time.Second,
			second: "succeeded, retries 1; row 1; calls 2, delivered 2"},
		{name: "unknown, hold", fault: lost, change: hold, first: "held, retries 0; row 0 no_answer; calls 1, delivered 1",
			second: "held, retries 0; row 0 no_answer; calls 1, delivered 1"},
		{name: "unknown, fail", fault: lost, change: fail, first: "failed/unknown, retries 0; row 2 no_answer; calls 1, delivered 1"},
		{name: "away", fault: sandbox.WeChatFault{TokenCalls: true, Drop: true, Times: 1}, first: "scheduled, retries 0; row 0 no_token; calls 0, delivered 0",
			wait: 15 * time.Second, second: "succeeded, retries 0; row 1; calls 1, delivered 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, sandbox.WeChatOptions{}, "RETRY_BACKOFF=wechat=5s")
			if c.name != "sent" {
				s.fake.InjectFault(c.fault)
			}
			o := s.submit(1, c.change...)
			s.run()
			require.Equal(t, c.first, s.outcome(o))
			if c.wait != 0 {
				require.InDelta(t, c.wait, s.dueIn(o), float64(2*time.Second))
			}
			if c.second == "" {
				return
			}
			s.fake.ClearFaults()
			s.advance(c.wait)
			s.run()
			require.Equal(t, c.second, s.outcome(o))
		})
	}
}

func TestUnresponsiveWeChatIsCalledLessOften(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=2")
	s.fake.InjectFault(sandbox.WeChatFault{Drop: true})
	for n := range uint64(6) {
		s.submit(n, func(sub *subscribe.Submission) { sub.OnUnknown = task.Hold })
	}
	s.run()
	require.Len(t, s.fake.Sends(), 2)
	require.Equal(t, 4, s.Count(`select count(*) from task_live where state = 1`), "no second batch is claimed")
	s.fake.ClearFaults()
	s.run()
	require.Len(t, s.fake.Delivered(), 4)
}

// The first attempt may have used the user's only consent.
func TestMissingConsentAfterUnknownSendIsUnknown(t *testing.T) {
	t.Parallel()
	for policy, retries := range map[task.Policy]int{task.Resend: 1, task.Fail: 0} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, sandbox.WeChatOptions{OneTime: true})
			s.fake.Grant("ann", "T1", 1)
			s.fake.InjectFault(sandbox.WeChatFault{Drop: true, DeliverFirst: true, Times: 1})
			change := func(s *subscribe.Submission) { s.OnUnknown = policy }
			o := s.submit(1, change)
			s.run()
			if policy == task.Fail {
				o = s.submit(1, change)
			}
			s.run()
			require.Equal(t, fmt.Sprintf("failed/unknown, retries %d; row 2 43101; calls 2, delivered 1", retries), s.outcome(o))
			row := s.db.MustLog(t, o.ID)
			require.Contains(t, row.ErrorMessage, "it is unknown whether an earlier attempt ")
			require.Contains(t, row.ErrorMessage, "user refuse to accept the msg rid: ")
		})
	}
}

func TestThreeErrorsPauseATemplate(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{Templates: []string{"T2"}}, "WECHAT_CONCURRENCY=1")
	for n := range uint64(3) {
		s.submit(n)
	}
	s.run()
	require.Equal(t, 3, s.Count(`select count(*) from task_done where status = 3 and error_code = '40037'`))
	s.requireOneError()
	waiting, other := s.submit(3), s.submit(4, func(sub *subscribe.Submission) { sub.TemplateID = "T2" })
	s.run()
	require.Equal(t, "scheduled, retries 0; row 0 template_paused; calls 4, delivered 1", s.outcome(waiting))
	require.InDelta(t, time.Hour, s.dueIn(waiting), float64(31*time.Minute))
	require.Contains(t, s.outcome(other), "succeeded")
	s.advance(2 * time.Hour)
	s.run()
	require.Equal(t, "scheduled, retries 0; row 0 template_paused; calls 4, delivered 1", s.outcome(waiting))

	due, err := s.db.Subscribe.ResumeTemplate(t.Context(), "T1", nil, store.Operator{Name: "op"})
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	s.run()
	require.Equal(t, "failed/rejected, retries 0; row 2 40037; calls 5, delivered 1", s.outcome(waiting))
}

// If very many messages of a caller were due at once, they would delay newer messages of other callers.
func TestMessagesOfAPausedTemplateAreDueAtDifferentTimes(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{Templates: []string{"T2"}})
	for n := range uint64(3) {
		s.submit(n)
	}
	s.run()
	for n := range uint64(20) {
		s.submit(3 + n)
	}
	s.run()
	require.Greater(t, s.Count(`select extract(epoch from max(due_at) - min(due_at))::int from task_live where state = 0`), 15*60)
}

func TestThreeConsecutiveErrorsPauseTemplateForTheirCaller(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=1")
	const bad = `{"thing1":{"value":""}}`
	for n, c := range []struct {
		caller int64
		data   string
	}{
		{7, bad}, {7, bad},
		{7, tea}, // resets the errors of this caller
		{7, bad}, {7, bad},
		{8, tea}, // does not reset the errors of the other caller
		{7, bad},
		{7, tea}, // not sent, because the template is paused for this caller
	} {
		s.submit(uint64(n), func(sub *subscribe.Submission) { sub.CallerID, sub.Data = c.caller, []byte(c.data) })
	}
	s.run()
	require.Len(t, s.fake.Sends(), 7)
	require.Len(t, s.fake.Delivered(), 2)
	require.Equal(t, 1, s.Count(`select count(*) from task_live where caller_id = 7 and state = 0`))
	s.requireOneError()
}

func TestSpentQuotaPausesUntilMidnightInShanghai(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{Daily: 1}, "WECHAT_CONCURRENCY=1")
	first, second, third := s.submit(1), s.submit(2), s.submit(3)
	before := time.Now()
	s.run()
	require.Contains(t, s.outcome(first), "succeeded")
	require.Equal(t, "pending, retries 0; row 0 45009; calls 2, delivered 1", s.outcome(second))
	require.Equal(t, "pending, retries 0; row 0; calls 2, delivered 1", s.outcome(third))
	p, paused, err := s.db.Tasks.QueuePause(t.Context(), task.WeChatQueue)
	require.NoError(t, err)
	require.True(t, paused)
	require.Equal(t, "wechat", p.PausedBy)
	require.Contains(t, p.Reason, "45009")
	require.WithinRange(t, p.Until, before, before.Add(24*time.Hour+2*time.Minute))
	local := p.Until.Add(8 * time.Hour) // in Shanghai
	require.Equal(t, time.Minute, local.Sub(local.Truncate(24*time.Hour)), "a minute after midnight")

	for range 3 {
		s.run()
	}
	require.Len(t, s.fake.Sends(), 2, "nothing is sent while the queue is paused")
	s.fake.AllowPerDay(0)
	s.Exec(`update queue_pauses set until = now()`)
	s.run()
	require.Contains(t, s.outcome(second), "succeeded, retries 0; row 1;")
	require.Contains(t, s.outcome(third), "succeeded, retries 0; row 1;")
	require.Len(t, s.fake.Delivered(), 3)
}

func TestWrongAppSettingsPauseTheQueue(t *testing.T) {
	t.Parallel()
	for errcode, c := range map[string]struct {
		env   string
		calls int
	}{
		"40125": {env: "WECHAT_APP_SECRET=wrong"},
		"48001": {calls: 1},
	} {
		t.Run(errcode, func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, sandbox.WeChatOptions{}, c.env)
			if c.env == "" {
				s.fake.InjectFault(errcodeFault(48001, 0))
			}
			o := s.submit(1)
			s.run()
			s.run()
			want := fmt.Sprintf("pending, retries 0; row 0 %s; calls %d, delivered 0", errcode, c.calls)
			require.Equal(t, want, s.outcome(o))
			s.requireOneError()
			p, paused, err := s.db.Tasks.QueuePause(t.Context(), task.WeChatQueue)
			require.NoError(t, err)
			require.True(t, paused)
			require.Zero(t, p.Until)

			s.fake.ClearFaults()
			require.NoError(t, s.process.Kill())
			s.env = append(s.env, "WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret)
			s.start()
			s.run()
			require.Equal(t, want, s.outcome(o), "the pause stays")
			_, err = s.db.Tasks.ResumeQueue(t.Context(), task.WeChatQueue, store.Operator{Name: "op"})
			require.NoError(t, err)
			s.run()
			require.Equal(t, fmt.Sprintf("succeeded, retries 0; row 1; calls %d, delivered 1", c.calls+1), s.outcome(o))
		})
	}
}
