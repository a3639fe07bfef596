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
		d := newTestService(names(12)...) // three for each of four sends
		s := startSender(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "task-00" {
				time.Sleep(10 * time.Second)
				return ok(ctx, m)
			}
			<-ctx.Done()
			return sender.Result{Message: ctx.Err().Error()}
		})
		advance(time.Second)
		begun := time.Now()
		s.finish()
		require.Equal(t, 20*time.Second, time.Since(begun), "the grace period")
		outcomes := d.outcomes()
		require.Len(t, outcomes, 12)
		require.Equal(t, []string{"2"}, outcomes["task-00"])
		for _, task := range names(12)[1:4] {
			require.Equal(t, []string{"unknown"}, outcomes[task])
		}
		for _, task := range names(12)[4:] {
			require.Equal(t, []string{"released"}, outcomes[task])
		}
	})
}

func TestSenderThatCannotReportStopsClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestService(names(40)...)
		d.refuseCalls("report", 503)
		s := startSender(t, d, ok)
		advance(time.Hour)
		require.Equal(t, 12, d.claimedCount(), "three for each of four sends, and their leases are extended")
		d.refuseCalls("", 0)
		advance(time.Minute)
		require.Len(t, d.outcomes(), 40)
		for task, outcomes := range d.outcomes() {
			require.Equal(t, []string{"2"}, outcomes, task)
		}
		s.finish()
	})
}

func TestReportIsRepeatedUntilResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestService("stale", "gone", "bad", "broken")
		tries := map[string]int{}
		d.setRefusal(func(call, task string) int {
			if call != "report" || task == "" {
				return 0
			}
			tries[task]++
			return map[string]int{"stale": 409, "gone": 404, "bad": 400, "broken": 500}[task]
		})
		s := startSender(t, d, ok)
		advance(time.Minute)
		require.Equal(t, 1, tries["stale"])
		require.Equal(t, 1, tries["gone"])
		require.Equal(t, 1, tries["bad"])
		require.Greater(t, tries["broken"], 5)
		d.refuseCalls("", 0)
		advance(time.Minute)
		require.Equal(t, map[string][]string{"broken": {"2"}}, d.outcomes())
		require.NoError(t, s.stop())
	})
}

func TestNextRunReportsWhatIsInTheJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestService("a")
		d.refuseCalls("report", 503)
		var sends atomic.Int64
		s := startSender(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			sends.Add(1)
			return ok(ctx, m)
		})
		advance(time.Minute)
		require.NoError(t, s.stop())
		require.Empty(t, d.outcomes())
		d.refuseCalls("", 0)
		s.start()
		advance(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.outcomes())
		require.NoError(t, s.stop())
		s.start()
		advance(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.outcomes(), "a third run has nothing to report")
		require.EqualValues(t, 1, sends.Load())
		s.finish()
	})
}

func TestCallsToAnUnavailableServiceBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestService("a")
		calls := 0
		d.setRefusal(func(string, string) int {
			calls++
			return 503
		})
		s := startSender(t, d, ok)
		advance(10 * time.Minute)
		synctest.Wait()
		require.Less(t, calls, 70)
		d.refuseCalls("", 0)
		advance(11 * time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.outcomes())
		s.finish()
	})
}
