package sender_test

import (
	"context"
	"errors"
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

// shift is a sender at work at a desk.
type shift struct {
	t    *testing.T
	desk *desk
	cfg  sender.Config
	end  func() error // asks it to stop and waits for it
}

// work starts a sender. Its gateway's sends are held to the rules.
func work(t *testing.T, d *desk, send sender.GatewayFunc, change ...func(*sender.Config)) *shift {
	t.Helper()
	s := &shift{t: t, desk: d, cfg: sender.Config{
		Client: d.client(), AppID: "app", Journal: filepath.Join(t.TempDir(), "journal"), Log: sandbox.Log(t),
		Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result {
			d.sendMay(m.TaskID, api.ID(m.ClaimID))
			return send(ctx, m)
		}),
	}}
	for _, c := range change {
		c(&s.cfg)
	}
	s.start()
	return s
}

func (s *shift) start() {
	s.t.Helper()
	worker, err := sender.New(s.cfg)
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	s.end = func() error {
		stop()
		return <-ended
	}
}

// finish ends the shift, and says what must hold in the end.
func (s *shift) finish() {
	s.t.Helper()
	require.NoError(s.t, s.end())
	require.Empty(s.t, s.desk.broken())
	require.Zero(s.t, s.desk.inHand(), "nothing stays in hand")
}

// pass lets time go by, and everybody do what is to be done until then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func ok(context.Context, sender.Message) sender.Result { return sender.Result{Outcome: sender.OK} }

func names(n int) []string {
	tasks := make([]string, n)
	for i := range tasks {
		tasks[i] = fmt.Sprintf("task-%02d", i)
	}
	return tasks
}

func TestEachOutcomeIsReportedAsWhatItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		results := map[string]sender.Result{
			"ok":        {Outcome: sender.OK},
			"failed":    {Outcome: sender.Failed, Code: "blacklisted\x00", Message: "no"},
			"retryable": {Outcome: sender.Retryable},
			"released":  {Outcome: sender.Released, RetryAfter: 1500 * time.Millisecond},
			"unknown":   {},
		}
		d := newDesk("ok", "failed", "retryable", "released", "unknown", "panics")
		s := work(t, d, func(_ context.Context, m sender.Message) sender.Result {
			require.Equal(t, "to "+m.TaskID, m.Content)
			if m.TaskID == "panics" {
				panic("on purpose")
			}
			return results[m.TaskID]
		})
		pass(time.Minute)
		require.Equal(t, map[string][]string{
			"ok": {"2"}, "failed": {"3"}, "retryable": {"3 retry"}, "released": {"released"}, "unknown": {"unknown"}, "panics": {"unknown"},
		}, d.told())
		for _, r := range d.reports {
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

func TestSendsStartAtLeastAnIntervalApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var starts []time.Time
		d := newDesk(names(20)...)
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			mu.Lock()
			starts = append(starts, time.Now())
			mu.Unlock()
			time.Sleep(time.Second)
			return ok(ctx, m)
		}, func(c *sender.Config) {
			c.Interval = 250 * time.Millisecond
			c.Client.HTTP.Transport = &dawdling{RoundTripper: d}
		})
		pass(time.Minute)
		require.Len(t, starts, 20)
		for i := 1; i < len(starts); i++ {
			require.GreaterOrEqual(t, starts[i].Sub(starts[i-1]), 250*time.Millisecond)
		}
		require.Less(t, starts[19].Sub(starts[0]), 8*time.Second, "and not much more")
		s.finish()
	})
}

// dawdling makes some calls take longer than others, so that marks are out of
// step.
type dawdling struct {
	http.RoundTripper
	calls atomic.Int64
}

func (s *dawdling) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(s.calls.Add(1)%3) * 100 * time.Millisecond)
	return s.RoundTripper.RoundTrip(r)
}

func TestNoMoreThanTheConcurrencyIsSentAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		d := newDesk(names(30)...)
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return ok(ctx, m)
		}, func(c *sender.Config) { c.Concurrency = 3 })
		pass(12 * time.Second)
		require.Len(t, d.told(), 30)
		require.EqualValues(t, 3, most.Load())
		s.finish()
	})
}

func TestALongSendKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Three wait while one is sent: they keep theirs too.
		d := newDesk(names(3)...)
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			time.Sleep(5 * time.Minute)
			require.NoError(t, ctx.Err())
			return ok(ctx, m)
		}, func(c *sender.Config) { c.Lease, c.Timeout, c.Concurrency = 10*time.Second, time.Hour, 1 })
		pass(20 * time.Minute)
		require.Equal(t, map[string][]string{"task-00": {"2"}, "task-01": {"2"}, "task-02": {"2"}}, d.told())
		s.finish()
	})
}

func TestASendEndsBeforeALeaseThatCannotBeExtended(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"the server is away": 503, "the claim is lost": 409, "the task is gone": 404} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDesk("a")
				d.refusing(func(word, _ string) int {
					if word == "extend" {
						return status
					}
					return 0
				})
				var took time.Duration
				s := work(t, d, func(ctx context.Context, _ sender.Message) sender.Result {
					begun := time.Now()
					<-ctx.Done()
					took = time.Since(begun)
					return sender.Result{}
				}, func(c *sender.Config) { c.Lease, c.Timeout = 30*time.Second, time.Hour })
				pass(time.Minute)
				require.Less(t, took, 30*time.Second)
				require.Equal(t, map[string][]string{"a": {"unknown"}}, d.told())
				s.finish()
			})
		})
	}
}

func TestTheTimeoutEndsASend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("heeds", "ignores")
		block := make(chan struct{})
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "ignores" {
				<-block
				return sender.Result{Outcome: sender.OK}
			}
			<-ctx.Done()
			return sender.Result{Outcome: sender.Retryable} // it knows that it was not sent
		}, func(c *sender.Config) { c.Timeout = 7 * time.Second })
		pass(8 * time.Second)
		require.Equal(t, map[string][]string{"heeds": {"3 retry"}}, d.told())
		pass(6 * time.Second)
		require.Equal(t, []string{"unknown"}, d.told()["ignores"])
		close(block)
		synctest.Wait()
		require.Equal(t, []string{"unknown"}, d.told()["ignores"], "what comes too late says nothing")
		s.finish()
	})
}

func TestAClaimThatIsLostIsNotSent(t *testing.T) {
	t.Parallel()
	for _, status := range []int{409, 404} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk("lost", "mine")
			d.refusing(func(word, task string) int {
				if word == "mark" && task == "lost" {
					return status
				}
				return 0
			})
			s := work(t, d, ok)
			time.Sleep(time.Minute)
			require.Equal(t, map[string][]string{"mine": {"2"}}, d.told(), "nobody asks for a word on the other one")
			require.NoError(t, s.end())
		})
	}
}

func TestWhatCannotBeMarkedIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("a")
		d.refusing(func(word, _ string) int {
			if word == "mark" {
				return 503
			}
			return 0
		})
		s := work(t, d, func(context.Context, sender.Message) sender.Result { panic("it must not be sent") })
		pass(time.Minute)
		require.Equal(t, map[string][]string{"a": {"released"}}, d.told())
		s.finish()
	})
}

func TestWhatWaitsWhileItsLeaseRunsOutIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("first", "second")
		d.refusing(func(word, _ string) int {
			if word == "extend" {
				return 503
			}
			return 0
		})
		s := work(t, d, ok, func(c *sender.Config) { c.Interval, c.Concurrency = time.Hour, 1 })
		pass(55 * time.Second)
		require.Equal(t, map[string][]string{"first": {"2"}, "second": {"released"}}, d.told())
		s.finish()
	})
}

func TestAReleaseHoldsUpTheNextSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("busy")
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "busy" {
				return sender.Result{Outcome: sender.Released, RetryAfter: 40 * time.Second}
			}
			return ok(ctx, m)
		})
		pass(time.Second)
		d.submit("next")
		pass(38 * time.Second)
		require.NotContains(t, d.told(), "next")
		pass(2 * time.Second)
		require.Equal(t, []string{"2"}, d.told()["next"])
		s.finish()
	})
}

func TestTwoSendersDoNotShareAJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := work(t, newDesk(), ok)
		synctest.Wait()
		second, err := sender.New(s.cfg)
		require.NoError(t, err)
		require.ErrorContains(t, second.Run(t.Context()), "another sender is using it")
		s.finish()
	})
}

func TestAllThatIsWrongIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := sender.New(sender.Config{Concurrency: -1, Interval: -1, Timeout: -1, Grace: -1, Lease: 1500 * time.Millisecond})
	for _, word := range []string{"client", "gateway", "journal", "app id", "concurrency", "interval", "timeout", "grace", "lease"} {
		require.ErrorContains(t, err, word)
	}
}

func TestAJournalThatCannotBeMadeStopsTheStart(t *testing.T) {
	t.Parallel()
	d := newDesk("a")
	worker, err := sender.New(sender.Config{
		Client: d.client(), AppID: "app", Gateway: sender.NewConsole(io.Discard), Journal: filepath.Join(t.TempDir(), "no", "such", "place"),
	})
	require.NoError(t, err)
	err = worker.Run(t.Context())
	require.True(t, errors.Is(err, os.ErrNotExist), err)
	require.Zero(t, d.inHand())
}
