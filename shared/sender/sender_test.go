package sender_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sender"
)

// testRun is a running sender of a testService.
type testRun struct {
	t       *testing.T
	service *testService
	cfg     sender.Config
	stop    func() error // stops the sender and returns the result of Run
}

// startSender starts a sender; the service checks that each send is allowed.
func startSender(t *testing.T, service *testService, send sender.GatewayFunc, change ...func(*sender.Config)) *testRun {
	t.Helper()
	s := &testRun{t: t, service: service, cfg: sender.Config{
		Client: service.client(), AppID: "app", Journal: filepath.Join(t.TempDir(), "journal"), Log: sandbox.Log(t),
		Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result {
			service.checkSend(m.TaskID, api.ID(m.ClaimID))
			return send(ctx, m)
		}),
	}}
	for _, c := range change {
		c(&s.cfg)
	}
	s.start()
	return s
}

func (s *testRun) start() {
	s.t.Helper()
	app, err := sender.New(s.cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	s.stop = func() error {
		cancel()
		return <-ended
	}
}

// finish stops the sender, and requires that it violated no rule and reported each task that it claimed.
func (s *testRun) finish() {
	s.t.Helper()
	require.NoError(s.t, s.stop())
	require.Empty(s.t, s.service.violations())
	require.Zero(s.t, s.service.claimedCount(), "all claimed tasks are reported")
}

// advance advances the fake clock and waits until all goroutines are blocked.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func ok(context.Context, sender.Message) sender.Result { return sender.Result{Outcome: sender.OK} }

func taskNames(n int) []string {
	tasks := make([]string, n)
	for i := range tasks {
		tasks[i] = fmt.Sprintf("task-%02d", i)
	}
	return tasks
}

func TestOutcomesAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		results := map[string]sender.Result{
			"ok":        {Outcome: sender.OK},
			"failed":    {Outcome: sender.Failed, Code: "blacklisted\x00", Message: "no"},
			"retryable": {Outcome: sender.Retryable},
			"released":  {Outcome: sender.Released, RetryAfter: 1500 * time.Millisecond},
			"unknown":   {},
		}
		service := newTestService("ok", "failed", "retryable", "released", "unknown", "panics")
		s := startSender(t, service, func(_ context.Context, m sender.Message) sender.Result {
			require.Equal(t, "to "+m.TaskID, m.Content)
			if m.TaskID == "panics" {
				panic("on purpose")
			}
			return results[m.TaskID]
		})
		advance(time.Minute)
		require.Equal(t, map[string][]string{
			"ok": {"2"}, "failed": {"3"}, "retryable": {"3 retry"}, "released": {"released"}, "unknown": {"unknown"}, "panics": {"unknown"},
		}, service.outcomes())
		for _, r := range service.reports {
			switch r.TaskID {
			case "ok":
				require.NotNil(t, r.SentAt)
			case "failed":
				require.Equal(t, "blacklisted ", r.ErrorCode)
				require.Equal(t, "no", r.ErrorMessage)
			case "released":
				require.EqualValues(t, 2, *r.RetryAfterSeconds)
			case "panics":
				require.Contains(t, r.ErrorMessage, "on purpose")
			}
		}
		s.finish()
	})
}

func TestSendsAreAnIntervalApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var starts []time.Time
		service := newTestService(taskNames(20)...)
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			mu.Lock()
			starts = append(starts, time.Now())
			mu.Unlock()
			time.Sleep(time.Second)
			return ok(ctx, m)
		}, func(c *sender.Config) {
			c.Interval = 250 * time.Millisecond
			c.Client.HTTP.Transport = &unevenTransport{RoundTripper: service}
		})
		advance(time.Minute)
		require.Len(t, starts, 20)
		for i := 1; i < len(starts); i++ {
			require.GreaterOrEqual(t, starts[i].Sub(starts[i-1]), 250*time.Millisecond)
		}
		require.Less(t, starts[19].Sub(starts[0]), 8*time.Second, "the interval is not much longer than configured")
		s.finish()
	})
}

// unevenTransport delays the calls by different times, so that tasks are marked at irregular times.
type unevenTransport struct {
	http.RoundTripper
	calls atomic.Int64
}

func (s *unevenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(s.calls.Add(1)%3) * 100 * time.Millisecond)
	return s.RoundTripper.RoundTrip(r)
}

func TestConcurrencyLimitsSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, mostRunning atomic.Int64
		service := newTestService(taskNames(30)...)
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			mostRunning.Store(max(mostRunning.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return ok(ctx, m)
		}, func(c *sender.Config) { c.Concurrency = 3 })
		advance(12 * time.Second)
		require.Len(t, service.outcomes(), 30)
		require.EqualValues(t, 3, mostRunning.Load())
		s.finish()
	})
}

func TestLeaseIsExtendedDuringALongSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The leases of waiting tasks are extended too.
		service := newTestService(taskNames(3)...)
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			time.Sleep(5 * time.Minute)
			require.NoError(t, ctx.Err())
			return ok(ctx, m)
		}, func(c *sender.Config) { c.Lease, c.Timeout, c.Concurrency = 10*time.Second, time.Hour, 1 })
		advance(20 * time.Minute)
		require.Equal(t, map[string][]string{"task-00": {"2"}, "task-01": {"2"}, "task-02": {"2"}}, service.outcomes())
		s.finish()
	})
}

func TestSendEndsBeforeAnUnextendedLease(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"unavailable": 503, "lost claim": 409, "unknown task": 404} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				service := newTestService("a")
				service.refuseCalls("extend", status)
				var took time.Duration
				s := startSender(t, service, func(ctx context.Context, _ sender.Message) sender.Result {
					started := time.Now()
					<-ctx.Done()
					took = time.Since(started)
					return sender.Result{}
				}, func(c *sender.Config) { c.Lease, c.Timeout = 30*time.Second, time.Hour })
				advance(time.Minute)
				require.Less(t, took, 30*time.Second)
				require.Equal(t, map[string][]string{"a": {"unknown"}}, service.outcomes())
				s.finish()
			})
		})
	}
}

func TestTimeoutEndsASend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("returns", "ignores")
		block := make(chan struct{})
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "ignores" {
				<-block
				return sender.Result{Outcome: sender.OK}
			}
			<-ctx.Done()
			return sender.Result{Outcome: sender.Retryable} // the message was certainly not sent
		}, func(c *sender.Config) { c.Timeout = 7 * time.Second })
		advance(8 * time.Second)
		require.Equal(t, map[string][]string{"returns": {"3 retry"}}, service.outcomes())
		advance(6 * time.Second)
		require.Equal(t, []string{"unknown"}, service.outcomes()["ignores"])
		close(block)
		synctest.Wait()
		require.Equal(t, []string{"unknown"}, service.outcomes()["ignores"], "a late result is ignored")
		s.finish()
	})
}

func TestLostClaimIsNotSent(t *testing.T) {
	t.Parallel()
	for _, status := range []int{409, 404} {
		synctest.Test(t, func(t *testing.T) {
			service := newTestService("lost", "mine")
			service.setRefusal(func(call, task string) int {
				if call == "mark" && task == "lost" {
					return status
				}
				return 0
			})
			s := startSender(t, service, ok)
			advance(time.Minute)
			require.Equal(t, map[string][]string{"mine": {"2"}}, service.outcomes(), "a lost claim is not reported")
			require.NoError(t, s.stop())
		})
	}
}

func TestTaskIsReleasedIfItCannotBeMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("a")
		service.refuseCalls("mark", 503)
		s := startSender(t, service, func(context.Context, sender.Message) sender.Result { panic("sent without a mark") })
		advance(time.Minute)
		require.Equal(t, map[string][]string{"a": {"released"}}, service.outcomes())
		s.finish()
	})
}

func TestWaitingTaskIsReleasedBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("first", "second")
		service.refuseCalls("extend", 503)
		s := startSender(t, service, ok, func(c *sender.Config) { c.Interval, c.Concurrency = time.Hour, 1 })
		advance(55 * time.Second)
		require.Equal(t, map[string][]string{"first": {"2"}, "second": {"released"}}, service.outcomes())
		s.finish()
	})
}

func TestRetryAfterDelaysTheNextSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("busy")
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "busy" {
				return sender.Result{Outcome: sender.Released, RetryAfter: 40 * time.Second}
			}
			return ok(ctx, m)
		})
		advance(time.Second)
		service.submit("next")
		advance(38 * time.Second)
		require.NotContains(t, service.outcomes(), "next")
		advance(2 * time.Second)
		require.Equal(t, []string{"2"}, service.outcomes()["next"])
		s.finish()
	})
}

func TestSenderWithAFailedJournalSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("a")
		app, err := sender.New(sender.Config{
			Client: service.client(), AppID: "app", Journal: filepath.Join(t.TempDir(), "journal"), Log: sandbox.Log(t),
			Gateway: sender.GatewayFunc(func(context.Context, sender.Message) sender.Result { panic("sent without an entry in the journal") }),
		})
		require.NoError(t, err)
		require.ErrorIs(t, app.RunWithBrokenJournal(t.Context()), os.ErrClosed)
		require.Equal(t, map[string][]string{"a": {"released"}}, service.outcomes())
	})
}

func TestNewNamesAllErrors(t *testing.T) {
	t.Parallel()
	_, err := sender.New(sender.Config{Concurrency: -1, Interval: -1, Timeout: -1, Grace: -1, Lease: 1500 * time.Millisecond})
	for _, field := range []string{"client", "gateway", "journal", "app id", "concurrency", "interval", "timeout", "grace", "lease"} {
		require.ErrorContains(t, err, field)
	}
}

func TestRunFailsIfTheJournalCannotBeOpened(t *testing.T) {
	t.Parallel()
	service := newTestService("a")
	app, err := sender.New(sender.Config{
		Client: service.client(), AppID: "app", Gateway: sender.NewConsole(io.Discard), Journal: filepath.Join(t.TempDir(), "missing", "journal"),
	})
	require.NoError(t, err)
	require.ErrorIs(t, app.Run(t.Context()), os.ErrNotExist)
	require.Zero(t, service.claimedCount())
}
