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

// wechatServer is where bookings are confirmed: the function wechat as a process, on a
// database of its own, and a WeChat that keeps a ledger.
type wechatServer struct {
	*cluster.Client
	fake *sandbox.WeChat
	db   *storetest.DB
	bin  string
	env  []string
	at   *sandbox.Process
}

const tea = `{"thing1":{"value":"Tea"}}`

// startWeChat has retries follow at once, unless env says otherwise.
func startWeChat(t *testing.T, o sandbox.WeChatOptions, env ...string) *wechatServer {
	t.Helper()
	fake, url := sandbox.NewWeChat(t, o), sandbox.NewDatabase(t)
	c := &wechatServer{Client: (&cluster.Client{T: t, User: "admin", Password: "secret"}).Connect(url), fake: fake, bin: cluster.Binary(t)}
	c.env = append(cluster.Settings(url, "FUNCTION_TARGET=wechat", "WECHAT_BASE_URL="+fake.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID,
		"WECHAT_APP_SECRET="+sandbox.WeChatSecret, "WECHAT_TIMEOUT=2s", "RETRY_BACKOFF=wechat=0"), env...)
	db := storetest.OpenAt(t, url)
	c.db = db
	c.open()
	return c
}

// open starts the function, again or for the first time.
func (c *wechatServer) open() {
	c.T.Helper()
	c.at = cluster.StartProcess(c.T, c.bin, c.env)
	fresh := *c.Client
	fresh.URL = cluster.Address(c.T, c.at)
	c.Client = &fresh
}

// order orders the confirmation of booking n, and gives its row and its task.
func (c *wechatServer) order(n uint64, change ...func(*subscribe.Submission)) subscribe.Submitted {
	c.T.Helper()
	s := &subscribe.Submission{
		TaskID: task.NewID(), TemplateID: "T1", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: n, ReceiverUserID: 9,
		ReceiverOpenID: "ann", Data: []byte(tea), Page: "pages/booking", Queue: task.WeChatQueue, MaxRetries: 3, Metadata: []byte(`{}`),
	}
	for _, f := range change {
		f(s)
	}
	out, err := c.db.Subscribe.Submit(c.T.Context(), s)
	require.NoError(c.T, err)
	require.False(c.T, out.Skipped)
	return out
}

// work has the function do all that is to be done now.
func (c *wechatServer) work() {
	c.T.Helper()
	done := c.Tick("wechat")
	require.Equal(c.T, 204, done.Status, done.Text)
}

// let lets d pass for the tasks that wait.
func (c *wechatServer) let(d time.Duration) {
	c.Exec(`update task_live set due_at = due_at - make_interval(secs => $1) where state = 0`, d.Seconds())
}

// fate is what became of an order, in a line: its task, its row, and what WeChat
// was asked and did.
func (c *wechatServer) fate(o subscribe.Submitted) string {
	c.T.Helper()
	now, err := c.db.Tasks.ByID(c.T.Context(), o.TaskID)
	require.NoError(c.T, err)
	row, err := c.db.Subscribe.LogByID(c.T.Context(), o.ID)
	require.NoError(c.T, err)
	state := now.State.String()
	if now.Reason != task.NoReason {
		state += "/" + now.Reason.String()
	}
	entry := strings.TrimSpace(fmt.Sprintf("row %d %s", row.Status, row.ErrorCode))
	return fmt.Sprintf("%s, retries %d; %s; asked %d, delivered %d", state, now.RetryCount, entry, len(c.fake.Sends()), len(c.fake.Delivered()))
}

// logged counts the lines of the process at a level.
func (c *wechatServer) logged(level slog.Level) int {
	return strings.Count(c.at.Output(), `"level":"`+level.String()+`"`)
}

// complains waits for the process to log its one error: an answer may come before
// the line.
func (c *wechatServer) complains() {
	c.T.Helper()
	cluster.Eventually(c.T, func() bool { return c.logged(slog.LevelError) > 0 })
	require.Equal(c.T, 1, c.logged(slog.LevelError), c.at.Output())
}

func (c *wechatServer) waitsFor(o subscribe.Submitted) time.Duration {
	var seconds float64
	require.NoError(c.T, c.Owner.QueryRow(c.T.Context(), `select extract(epoch from due_at - now())::float8 from task_live where id = $1`, o.TaskID).Scan(&seconds))
	return time.Duration(seconds * float64(time.Second)).Round(time.Second)
}

// scripted has WeChat answer the first n calls for a message with an errcode; 0 =
// all.
func scripted(errcode, n int) sandbox.WeChatFault {
	return sandbox.WeChatFault{Errcode: errcode, Times: n}
}

// What each answer of WeChat comes to, for a message that is ordered once.
func TestErrcodesDecideTheOutcome(t *testing.T) {
	t.Parallel()
	known := sandbox.WeChatOptions{OpenIDs: []string{"ann"}, Templates: []string{"T1"}, Pages: []string{"pages/booking"}}
	granted := sandbox.WeChatOptions{OneTime: true}
	for _, c := range []struct {
		name    string
		options sandbox.WeChatOptions
		fault   sandbox.WeChatFault
		order   func(*subscribe.Submission)
		once    string        // after one call of the function
		waits   time.Duration // until the next try, where there is one
		then    string        // after all faults are mended and time has passed
	}{
		{name: "0", options: known, once: "succeeded, retries 0; row 1; asked 1, delivered 1"},
		{name: "-1", fault: scripted(-1, 1), once: "scheduled, retries 1; row 2 -1; asked 1, delivered 0", waits: 5 * time.Second,
			then: "succeeded, retries 1; row 1; asked 2, delivered 1"},
		{name: "-1 for ever", fault: scripted(-1, 0), order: func(s *subscribe.Submission) { s.MaxRetries = 0 },
			once: "failed/retries_exhausted, retries 0; row 2 -1; asked 1, delivered 0"},
		{name: "40001", fault: scripted(40001, 1), once: "succeeded, retries 0; row 1; asked 2, delivered 1"},
		{name: "40014", fault: scripted(40014, 1), once: "succeeded, retries 0; row 1; asked 2, delivered 1"},
		{name: "42001", fault: scripted(42001, 1), once: "succeeded, retries 0; row 1; asked 2, delivered 1"},
		{name: "42001 again", fault: scripted(42001, 2), once: "scheduled, retries 0; row 0 42001; asked 2, delivered 0", waits: time.Minute,
			then: "succeeded, retries 0; row 1; asked 3, delivered 1"},
		{name: "40003", options: known, order: func(s *subscribe.Submission) { s.ReceiverOpenID = "nobody" },
			once: "failed/rejected, retries 0; row 2 40003; asked 1, delivered 0"},
		{name: "40037", options: known, order: func(s *subscribe.Submission) { s.TemplateID = "T9" },
			once: "failed/rejected, retries 0; row 2 40037; asked 1, delivered 0"},
		{name: "41030", options: known, order: func(s *subscribe.Submission) { s.Page = "pages/none" },
			once: "failed/rejected, retries 0; row 2 41030; asked 1, delivered 0"},
		{name: "47003", order: func(s *subscribe.Submission) { s.Data = []byte(`{"thing1":{"value":""}}`) },
			once: "failed/rejected, retries 0; row 2 47003; asked 1, delivered 0"},
		{name: "43101", options: granted, once: "failed/rejected, retries 0; row 2 43101; asked 1, delivered 0"},
		{name: "45011", fault: scripted(45011, 1), once: "scheduled, retries 0; row 0 45011; asked 1, delivered 0", waits: time.Minute,
			then: "succeeded, retries 0; row 1; asked 2, delivered 1"},
		{name: "99999, not documented", fault: scripted(99999, 1), once: "scheduled, retries 1; row 2 99999; asked 1, delivered 0", waits: 5 * time.Second,
			then: "succeeded, retries 1; row 1; asked 2, delivered 1"},
		{name: "no answer, not delivered", fault: sandbox.WeChatFault{Drop: true, Times: 1}, waits: 5 * time.Second,
			once: "scheduled, retries 1; row 0 no_answer; asked 1, delivered 0", then: "succeeded, retries 1; row 1; asked 2, delivered 1"},
		{name: "no answer, delivered", fault: sandbox.WeChatFault{Drop: true, After: true, Times: 1}, waits: 5 * time.Second,
			once: "scheduled, retries 1; row 0 no_answer; asked 1, delivered 1", then: "succeeded, retries 1; row 1; asked 2, delivered 2"},
		{name: "no answer, hold", fault: sandbox.WeChatFault{Drop: true, After: true}, order: func(s *subscribe.Submission) { s.OnUnknown = task.Hold },
			once: "held, retries 0; row 0 no_answer; asked 1, delivered 1", then: "held, retries 0; row 0 no_answer; asked 1, delivered 1"},
		{name: "no answer, fail", fault: sandbox.WeChatFault{Drop: true, After: true}, order: func(s *subscribe.Submission) { s.OnUnknown = task.Fail },
			once: "failed/unknown, retries 0; row 2 no_answer; asked 1, delivered 1"},
		{name: "an answer too late", fault: sandbox.WeChatFault{Delay: time.Hour, After: true}, order: func(s *subscribe.Submission) { s.OnUnknown = task.Hold },
			once: "held, retries 0; row 0 no_answer; asked 1, delivered 1"},
		{name: "502", fault: sandbox.WeChatFault{Status: 502, After: true}, order: func(s *subscribe.Submission) { s.OnUnknown = task.Hold },
			once: "held, retries 0; row 0 bad_answer; asked 1, delivered 1"},
		{name: "no JSON", fault: sandbox.WeChatFault{Body: "<html>"}, order: func(s *subscribe.Submission) { s.OnUnknown = task.Hold },
			once: "held, retries 0; row 0 bad_answer; asked 1, delivered 0"},
		{name: "no token: no answer", fault: sandbox.WeChatFault{Tokens: true, Drop: true, Times: 1}, waits: 15 * time.Second,
			once: "scheduled, retries 0; row 0 no_token; asked 0, delivered 0", then: "succeeded, retries 0; row 1; asked 1, delivered 1"},
		{name: "no token: -1", fault: sandbox.WeChatFault{Tokens: true, Errcode: -1, Times: 1}, waits: 15 * time.Second,
			once: "scheduled, retries 0; row 0 -1; asked 0, delivered 0", then: "succeeded, retries 0; row 1; asked 1, delivered 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, c.options, "RETRY_BACKOFF=wechat=5s")
			if c.fault != (sandbox.WeChatFault{}) {
				s.fake.InjectFault(c.fault)
			}
			o := s.order(1, func(sub *subscribe.Submission) {
				if c.order != nil {
					c.order(sub)
				}
			})
			s.work()
			t.Logf("%-25s %s", c.name, s.fate(o))
			require.Equal(t, c.once, s.fate(o))
			if c.waits != 0 {
				require.InDelta(t, c.waits, s.waitsFor(o), float64(2*time.Second))
			}
			if c.then == "" {
				return
			}
			s.fake.ClearFaults()
			s.let(c.waits)
			s.work()
			require.Equal(t, c.then, s.fate(o))
		})
	}
}

func TestUnreachableWeChatUsesNoAttempt(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{})
	s.order(1)
	s.work() // so that there is a token
	require.NoError(t, s.fake.Stop())
	o := s.order(2)
	for range 5 {
		s.work()
		require.Equal(t, "scheduled, retries 0; row 0 not_sent; asked 1, delivered 1", s.fate(o))
		s.let(time.Minute)
	}
}

func TestUnresponsiveWeChatIsCalledLessOften(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=2")
	s.fake.InjectFault(sandbox.WeChatFault{Drop: true})
	for n := range uint64(6) {
		s.order(n, func(sub *subscribe.Submission) { sub.OnUnknown = task.Hold })
	}
	s.work()
	require.Len(t, s.fake.Sends(), 2)
	require.Equal(t, 4, s.Count(`select count(*) from task_live where state = 1`), "what is not begun does not end unknown")
	s.fake.ClearFaults()
	s.work()
	require.Len(t, s.fake.Delivered(), 4)
}

func TestMissingConsentAfterUnknownSendIsASuccess(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*subscribe.Submission){
		"tried again":   func(*subscribe.Submission) {},
		"ordered again": func(s *subscribe.Submission) { s.OnUnknown = task.Fail },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, sandbox.WeChatOptions{OneTime: true})
			s.fake.Grant("ann", "T1", 1)
			s.fake.InjectFault(sandbox.WeChatFault{Drop: true, After: true, Times: 1})
			o := s.order(1, change)
			s.work()
			if name == "ordered again" {
				require.Equal(t, "failed/unknown, retries 0; row 2 no_answer; asked 1, delivered 1", s.fate(o))
				o = s.order(1, change)
			}
			s.work()
			require.Contains(t, s.fate(o), "; row 1 43101; asked 2, delivered 1")
			row, err := s.db.Subscribe.LogByID(t.Context(), o.ID)
			require.NoError(t, err)
			require.Contains(t, row.ErrorMessage, "inferred: ")
			require.Contains(t, row.ErrorMessage, "user refuse to accept the msg rid: ")
			t.Log(s.fate(o))
		})
	}
}

func TestThreeErrorsPauseATemplate(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{Templates: []string{"T2"}}, "WECHAT_CONCURRENCY=1")
	for n := range uint64(3) {
		s.order(n)
	}
	s.work()
	require.Equal(t, 3, s.Count(`select count(*) from task_done where status = 3 and error_code = '40037'`))
	s.complains()
	waits, other := s.order(3), s.order(4, func(sub *subscribe.Submission) { sub.TemplateID = "T2" })
	s.work()
	require.Equal(t, "scheduled, retries 0; row 0 template_paused; asked 4, delivered 1", s.fate(waits))
	require.InDelta(t, time.Hour, s.waitsFor(waits), float64(20*time.Second))
	require.Contains(t, s.fate(other), "succeeded")
	s.let(time.Hour)
	s.work()
	require.Equal(t, "scheduled, retries 0; row 0 template_paused; asked 4, delivered 1", s.fate(waits))

	due, err := s.db.Subscribe.LiftTemplate(t.Context(), "T1", nil, store.Operator{Name: "op"})
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	s.work()
	require.Equal(t, "failed/rejected, retries 0; row 2 40037; asked 5, delivered 1", s.fate(waits))
}

func TestBadDataPausesTemplateForItsCallerOnly(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=1")
	var neighbour []subscribe.Submitted
	for n, caller := range []int64{7, 8, 7, 7, 7, 8} {
		o := s.order(uint64(n), func(sub *subscribe.Submission) {
			if sub.CallerID = caller; caller == 7 {
				sub.Data = []byte(`{"thing1":{"value":""}}`)
			}
		})
		if caller == 8 {
			neighbour = append(neighbour, o)
		}
	}
	s.work()
	for _, o := range neighbour {
		require.Equal(t, "succeeded, retries 0; row 1; asked 5, delivered 2", s.fate(o))
	}
	require.Equal(t, 1, s.Count(`select count(*) from task_live where caller_id = 7 and state = 0`), "the success of another wipes out no strike")
	s.complains()
}

func TestSuccessResetsTemplateErrors(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{}, "WECHAT_CONCURRENCY=1")
	for n := range uint64(6) {
		s.order(n, func(sub *subscribe.Submission) {
			if n%3 != 2 {
				sub.Data = []byte(`{"thing1":{"value":""}}`)
			}
		})
	}
	s.work()
	require.Len(t, s.fake.Sends(), 6)
	require.Len(t, s.fake.Delivered(), 2)
	require.Zero(t, s.logged(slog.LevelError))
}

func TestSpentQuotaPausesUntilMidnightInShanghai(t *testing.T) {
	t.Parallel()
	s := startWeChat(t, sandbox.WeChatOptions{Daily: 1}, "WECHAT_CONCURRENCY=1")
	first, second, third := s.order(1), s.order(2), s.order(3)
	before := time.Now()
	s.work()
	require.Contains(t, s.fate(first), "succeeded")
	require.Equal(t, "pending, retries 0; row 0 45009; asked 2, delivered 1", s.fate(second))
	require.Equal(t, "pending, retries 0; row 0; asked 2, delivered 1", s.fate(third))
	p, paused, err := s.db.Tasks.QueuePause(t.Context(), task.WeChatQueue)
	require.NoError(t, err)
	require.True(t, paused)
	require.Equal(t, "wechat", p.PausedBy)
	require.Contains(t, p.Reason, "45009")
	const fromMidnight = 8 * time.Hour // Shanghai is so far ahead
	require.WithinRange(t, p.Until, before, before.Add(24*time.Hour+2*time.Minute))
	require.Equal(t, time.Minute, p.Until.Add(fromMidnight).Sub(p.Until.Add(fromMidnight).Truncate(24*time.Hour)), "a little after midnight")

	for range 3 {
		s.work()
	}
	require.Len(t, s.fake.Sends(), 2, "nobody asks while the queue is paused")
	s.fake.AllowPerDay(0)
	s.Exec(`update queue_pauses set until = now()`)
	s.work()
	require.Contains(t, s.fate(second), "succeeded, retries 0; row 1;")
	require.Contains(t, s.fate(third), "succeeded, retries 0; row 1;")
	require.Len(t, s.fake.Delivered(), 3)
}

func TestWrongAppSettingsPauseTheQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env   string
		fault sandbox.WeChatFault
		asked int
	}{
		"40013": {env: "WECHAT_APP_ID=wx9"},
		"40125": {env: "WECHAT_APP_SECRET=wrong"},
		"40001": {fault: sandbox.WeChatFault{Tokens: true, Errcode: 40001}},
		"40164": {fault: sandbox.WeChatFault{Tokens: true, Errcode: 40164}},
		"48001": {fault: scripted(48001, 0), asked: 1},
		"48004": {fault: scripted(48004, 0), asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWeChat(t, sandbox.WeChatOptions{}, c.env)
			if c.fault != (sandbox.WeChatFault{}) {
				s.fake.InjectFault(c.fault)
			}
			o := s.order(1)
			s.work()
			s.work()
			want := fmt.Sprintf("pending, retries 0; row 0 %s; asked %d, delivered 0", name, c.asked)
			t.Logf("%-25s %s", name, s.fate(o))
			require.Equal(t, want, s.fate(o))
			s.complains()
			p, paused, err := s.db.Tasks.QueuePause(t.Context(), task.WeChatQueue)
			require.NoError(t, err)
			require.True(t, paused)
			require.Zero(t, p.Until)

			s.fake.ClearFaults()
			require.NoError(t, s.at.Kill())
			s.env = append(s.env, "WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret)
			s.open()
			s.work()
			require.Equal(t, want, s.fate(o), "the pause stays")
			_, err = s.db.Tasks.ResumeQueue(t.Context(), task.WeChatQueue, store.Operator{Name: "op"})
			require.NoError(t, err)
			s.work()
			require.Equal(t, fmt.Sprintf("succeeded, retries 0; row 1; asked %d, delivered 1", c.asked+1), s.fate(o))
		})
	}
}
