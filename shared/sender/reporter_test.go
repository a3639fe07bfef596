package sender_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sender"
)

func TestStopReleasesWaitingTasksAndWaitsForSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService(taskNames(12)...) // three tasks for each of four concurrent sends
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "task-00" {
				time.Sleep(10 * time.Second)
				return ok(ctx, m)
			}
			<-ctx.Done()
			return sender.Result{Message: ctx.Err().Error()}
		})
		advance(time.Second)
		started := time.Now()
		s.finish()
		require.Equal(t, 20*time.Second, time.Since(started), "the grace period")
		outcomes := service.outcomes()
		require.Len(t, outcomes, 12)
		require.Equal(t, []string{"2"}, outcomes["task-00"])
		for _, task := range taskNames(12)[1:4] {
			require.Equal(t, []string{"unknown"}, outcomes[task])
		}
		for _, task := range taskNames(12)[4:] {
			require.Equal(t, []string{"released"}, outcomes[task])
		}
	})
}

func TestSenderThatCannotReportStopsClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService(taskNames(40)...)
		service.refuseCalls("report", 503)
		s := startSender(t, service, ok)
		advance(time.Hour)
		require.Equal(t, 12, service.claimedCount(), "three tasks for each of four concurrent sends")
		service.refuseCalls("", 0)
		advance(time.Minute)
		require.Len(t, service.outcomes(), 40)
		for task, outcomes := range service.outcomes() {
			require.Equal(t, []string{"2"}, outcomes, task)
		}
		s.finish()
	})
}

func TestReportIsRepeatedUntilItsResponseIsFinal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("stale", "gone", "bad", "broken")
		tries := map[string]int{}
		service.setRefusal(func(call, task string) int {
			if call != "report" || task == "" {
				return 0
			}
			tries[task]++
			return map[string]int{"stale": 409, "gone": 404, "bad": 400, "broken": 500}[task]
		})
		s := startSender(t, service, ok)
		advance(time.Minute)
		require.Equal(t, 1, tries["stale"])
		require.Equal(t, 1, tries["gone"])
		require.Equal(t, 1, tries["bad"])
		require.Greater(t, tries["broken"], 5)
		service.refuseCalls("", 0)
		advance(time.Minute)
		require.Equal(t, map[string][]string{"broken": {"2"}}, service.outcomes())
		require.NoError(t, s.stop())
	})
}

func TestReportThatIsRefusedDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService(append(taskNames(60), "broken")...)
		service.setRefusal(func(call, task string) int {
			if call == "report" && task == "broken" {
				return 500
			}
			return 0
		})
		s := startSender(t, service, ok)
		advance(5 * time.Second)
		require.Len(t, service.outcomes(), 60)
		service.refuseCalls("", 0)
		advance(11 * time.Second)
		require.Len(t, service.outcomes(), 61)
		s.finish()
	})
}

func TestNextRunReportsAttemptsInTheJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("a")
		service.refuseCalls("report", 503)
		var sends atomic.Int64
		s := startSender(t, service, func(ctx context.Context, m sender.Message) sender.Result {
			sends.Add(1)
			return ok(ctx, m)
		})
		advance(time.Minute)
		require.NoError(t, s.stop())
		require.Empty(t, service.outcomes())
		service.refuseCalls("", 0)
		s.start()
		advance(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, service.outcomes())
		require.NoError(t, s.stop())
		s.start()
		advance(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, service.outcomes(), "a third run has nothing to report")
		require.EqualValues(t, 1, sends.Load())
		s.finish()
	})
}

func TestCallsToAnUnavailableServiceBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newTestService("a")
		calls := 0
		service.setRefusal(func(string, string) int {
			calls++
			return 503
		})
		s := startSender(t, service, ok)
		advance(10 * time.Minute)
		require.Less(t, calls, 70)
		service.refuseCalls("", 0)
		advance(11 * time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, service.outcomes())
		s.finish()
	})
}

func TestLongRetryAfterDoesNotStopSender(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"claim", "mark", "report"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				service := newTestService(taskNames(12)...)
				service.retryAfter = "3600"
				service.refuseCalls(call, 503)
				s := startSender(t, service, ok, func(c *sender.Config) { c.Client.Tries = 0 })
				advance(time.Minute)
				service.refuseCalls("", 0)
				advance(time.Minute)
				service.submit("later")
				advance(time.Minute)
				require.Equal(t, []string{"2"}, service.outcomes()["later"])
				s.finish()
			})
		})
	}
}
