package auth

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

func TestCallerIsCachedForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queries := map[string]int{}
		c := newCallers(func(ctx context.Context, name string, _ bool) (callers.Caller, error) {
			queries[name]++
			return knownCallers(ctx, name, false)
		})
		for _, name := range []string{"submitter", "nobody", "outage"} {
			for range 3 {
				_, _ = c.byName(t.Context(), name, false)
			}
		}
		require.Equal(t, map[string]int{"submitter": 1, "nobody": 1, "outage": 3}, queries, "an outage is not cached")
		time.Sleep(CallerTTL + time.Second)
		for range 3 {
			_, _ = c.byName(t.Context(), "submitter", false)
			_, _ = c.byName(t.Context(), "nobody", false)
		}
		require.Equal(t, map[string]int{"submitter": 2, "nobody": 2, "outage": 3}, queries)
	})
}

func TestCallerLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var queries atomic.Int32
		c := newCallers(func(ctx context.Context, name string, _ bool) (callers.Caller, error) {
			queries.Add(1)
			time.Sleep(time.Second)
			return knownCallers(ctx, name, false)
		})
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.byName(short, "submitter", false)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		for range 50 {
			all.Go(func() {
				caller, err := c.byName(t.Context(), "submitter", false)
				require.NoError(t, err, "a call that is cancelled does not cancel the lookup")
				require.Equal(t, "submitter", caller.Name)
			})
		}
		all.Wait()
		require.EqualValues(t, 1, queries.Load())
	})
}

func TestSlowLookupForListDoesNotDelayOtherCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
			if forList {
				<-ctx.Done()
				return callers.Caller{}, ctx.Err()
			}
			return knownCallers(ctx, name, forList)
		})
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.byName(t.Context(), "submitter", true)
			require.Error(t, err)
		})
		synctest.Wait()
		began := time.Now()
		caller, err := c.byName(t.Context(), "submitter", false)
		require.NoError(t, err)
		require.Equal(t, "submitter", caller.Name)
		require.Zero(t, time.Since(began))
		all.Wait()
	})
}

func TestGuessedNamesDoNotEvictCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in synctest no entry expires meanwhile
		var queries int
		c := newCallers(func(_ context.Context, name string, _ bool) (callers.Caller, error) {
			queries++
			if name == "real" {
				return callers.Caller{Name: name}, nil
			}
			return callers.Caller{}, task.Refuse(task.CodeNotFound, "no such caller")
		})
		_, err := c.byName(t.Context(), "real", false)
		require.NoError(t, err)
		for i := range callerLimit + 100 {
			_, err := c.byName(t.Context(), fmt.Sprint("guess", i), false)
			require.Error(t, err)
		}
		require.Equal(t, callerLimit, len(c.unknown))
		before := queries
		_, err = c.byName(t.Context(), "real", false)
		require.NoError(t, err)
		require.Equal(t, before, queries)
	})
}

func TestChangeDuringCallerLookupIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
			caller, err := knownCallers(ctx, name, forList)
			time.Sleep(time.Second)
			return caller, err
		})
		go func() {
			time.Sleep(500 * time.Millisecond)
			c.Forget("submitter")
		}()
		l, err := c.get(t.Context(), callerQuery{name: "submitter"})
		require.NoError(t, err)
		<-l.changed // at once: the result may be older than the change
		require.Empty(t, c.known)
	})
}

func TestChangedStaysOpenIfCallerIsTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(knownCallers.ByName)
		first, err := c.get(t.Context(), callerQuery{name: "submitter"})
		require.NoError(t, err)
		time.Sleep(CallerTTL + time.Second)
		second, err := c.get(t.Context(), callerQuery{name: "submitter"})
		require.NoError(t, err)
		require.NotSame(t, first, second)
		require.Equal(t, first.changed, second.changed, "a new query that finds the same caller does not close changed")
		c.Forget("submitter")
		<-first.changed
	})
}
