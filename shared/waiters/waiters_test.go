package waiters

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func woken(w *Waiter) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

func TestNotifyWakesTheOldestAndAtMostN(t *testing.T) {
	t.Parallel()
	l := New()
	first, second, third, other := l.Register("q"), l.Register("q"), l.Register("q"), l.Register("other")
	l.Notify("q", 2)
	require.True(t, woken(first))
	require.True(t, woken(second))
	require.False(t, woken(third))
	require.False(t, woken(other))
	l.Notify("q", 5)
	require.True(t, woken(third))
	require.False(t, woken(first), "a waiter is woken once")
	for _, w := range []*Waiter{first, second, third, other} {
		w.Close()
		w.Close()
	}
	require.Empty(t, l.queues, "a queue without waiters has no entry")
}

func TestNotifyOnePerQueueWakesTheOldest(t *testing.T) {
	t.Parallel()
	l := New()
	first, second, other := l.Register("q"), l.Register("q"), l.Register("other")
	l.NotifyOnePerQueue()
	require.True(t, woken(first))
	require.False(t, woken(second))
	require.True(t, woken(other))
	l.NotifyOnePerQueue()
	require.True(t, woken(second))
	l.NotifyOnePerQueue()
	require.Empty(t, l.queues)
}

func TestUnusedWakeUpIsPassedOn(t *testing.T) {
	t.Parallel()
	l := New()
	leaving, staying := l.Register("q"), l.Register("q")
	l.Notify("q", 1)
	leaving.Close()
	require.True(t, woken(staying))

	t.Run("a used wake-up is not passed on", func(t *testing.T) {
		t.Parallel()
		l := New()
		used, staying := l.Register("q"), l.Register("q")
		l.Notify("q", 1)
		<-used.C
		used.Close()
		require.False(t, woken(staying))
	})
	t.Run("a waiter that was not woken passes nothing on", func(t *testing.T) {
		t.Parallel()
		l := New()
		leaving, staying := l.Register("q"), l.Register("q")
		leaving.Close()
		require.False(t, woken(staying))
		l.Notify("q", 1)
		require.True(t, woken(staying))
	})
}

// Consumers register, look for work and wait if there is none; producers add work and notify. If a
// wake-up were lost, some work would never be done.
func TestNoWakeUpIsLostWhenWaitersLeave(t *testing.T) {
	t.Parallel()
	const work, consumers = 2000, 8
	l := New()
	var ready, taken atomic.Int64
	done := make(chan struct{})
	take := func() bool {
		for {
			n := ready.Load()
			if n == 0 {
				return false
			}
			if ready.CompareAndSwap(n, n-1) {
				if taken.Add(1) == work {
					close(done)
				}
				return true
			}
		}
	}
	var all sync.WaitGroup
	for range consumers {
		all.Go(func() {
			for {
				w := l.Register("q")
				if !take() {
					select {
					case <-w.C:
						take()
					case <-done:
						w.Close()
						return
					}
				}
				w.Close()
			}
		})
	}
	for range work / 100 {
		all.Go(func() {
			for range 100 {
				ready.Add(1)
				l.Notify("q", 1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, work, taken.Load())
	require.Empty(t, l.queues)
}
