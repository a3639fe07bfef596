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

func TestAStopReleasesWhatIsNotBegunAndWaitsForTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(names(12)...) // all that four sends have in hand
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			if m.TaskID == "task-00" {
				time.Sleep(10 * time.Second)
				return ok(ctx, m)
			}
			<-ctx.Done()
			return sender.Result{Message: ctx.Err().Error()}
		})
		pass(time.Second)
		begun := time.Now()
		s.finish()
		require.Equal(t, 20*time.Second, time.Since(begun), "the grace period")
		told := d.told()
		require.Len(t, told, 12)
		require.Equal(t, []string{"2"}, told["task-00"])
		for _, task := range names(12)[1:4] {
			require.Equal(t, []string{"unknown"}, told[task])
		}
		for _, task := range names(12)[4:] {
			require.Equal(t, []string{"released"}, told[task])
		}
	})
}

func TestASenderThatCannotReportStopsClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(names(40)...)
		away := func(word, _ string) int {
			if word == "report" {
				return 503
			}
			return 0
		}
		d.refusing(away)
		s := work(t, d, ok)
		pass(time.Hour)
		require.Equal(t, 12, d.inHand(), "three for each of four sends, and their leases are kept")
		d.refusing(never)
		pass(time.Minute)
		require.Len(t, d.told(), 40)
		for task, words := range d.told() {
			require.Equal(t, []string{"2"}, words, task)
		}
		s.finish()
	})
}

func TestAReportIsMadeUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("stale", "gone", "bad", "broken")
		tries := map[string]int{}
		d.refusing(func(word, task string) int {
			if word != "report" || task == "" {
				return 0
			}
			tries[task]++
			return map[string]int{"stale": 409, "gone": 404, "bad": 400, "broken": 500}[task]
		})
		s := work(t, d, ok)
		pass(time.Minute)
		require.Equal(t, 1, tries["stale"])
		require.Equal(t, 1, tries["gone"])
		require.Equal(t, 1, tries["bad"])
		require.Greater(t, tries["broken"], 5)
		d.refusing(never)
		pass(time.Minute)
		require.Equal(t, map[string][]string{"broken": {"2"}}, d.told())
		require.NoError(t, s.end())
	})
}

func TestWhatCouldNotBeReportedIsReportedByTheNextRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("a")
		d.refusing(func(word, _ string) int {
			if word == "report" {
				return 503
			}
			return 0
		})
		var sends atomic.Int64
		s := work(t, d, func(ctx context.Context, m sender.Message) sender.Result {
			sends.Add(1)
			return ok(ctx, m)
		})
		pass(time.Minute)
		require.NoError(t, s.end())
		require.Empty(t, d.told())
		d.refusing(never)
		s.start()
		pass(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.told())
		require.NoError(t, s.end())
		s.start()
		pass(time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.told(), "and by that one only")
		require.EqualValues(t, 1, sends.Load())
		s.finish()
	})
}

func TestAnAbsentServiceIsAskedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk("a")
		calls := 0
		d.refusing(func(string, string) int {
			calls++
			return 503
		})
		s := work(t, d, ok)
		pass(10 * time.Minute)
		synctest.Wait()
		require.Less(t, calls, 70)
		d.refusing(never)
		pass(11 * time.Second)
		require.Equal(t, map[string][]string{"a": {"2"}}, d.told())
		s.finish()
	})
}
