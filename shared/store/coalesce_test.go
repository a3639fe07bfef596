package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

const greedy, modest, third = 1, 2, 3 // callers

// row is one of a caller; bad ones fail their flush.
type row struct {
	caller int64
	bad    bool
}

// flushes is a coalescer whose flushes the test sees and ends.
type flushes struct {
	*Coalescer[row, int]
	begun chan []row
	end   chan struct{}
}

func newFlushes() *flushes {
	f := &flushes{begun: make(chan []row, 100), end: make(chan struct{})}
	f.Coalescer = NewCoalescer(func(r row) int64 { return r.caller }, func(_ context.Context, rows []row, _ bool) ([]int, error) {
		f.begun <- rows
		<-f.end
		if slices.ContainsFunc(rows, func(r row) bool { return r.bad }) {
			return nil, &pgconn.PgError{Code: "40P01"}
		}
		return make([]int, len(rows)), nil
	})
	return f
}

// queue gives a caller n rows and returns when they wait or are under way.
func (f *flushes) queue(caller int64, n int, bad bool) (done <-chan error) {
	returned := make(chan error, 1)
	rows := slices.Repeat([]row{{caller, bad}}, n)
	entries := make([]entry[row, int], n)
	var all sync.WaitGroup
	for i := range entries {
		entries[i] = entry[row, int]{in: rows[i], caller: caller, done: &all}
	}
	if !f.enqueue(entries, &all) {
		returned <- Busy()
		return returned
	}
	go func() {
		all.Wait()
		returned <- entries[n-1].err
	}()
	return returned
}

// next is what the next flush holds, by caller.
func (f *flushes) next(t *testing.T) map[int64]int {
	t.Helper()
	select {
	case rows := <-f.begun:
		of := map[int64]int{}
		for _, r := range rows {
			of[r.caller]++
		}
		return of
	case <-time.After(5 * time.Second):
		require.Fail(t, "no flush began")
		return nil
	}
}

// endUntil ends flushes until a call returns.
func (f *flushes) endUntil(t *testing.T, returned <-chan error) error {
	t.Helper()
	for {
		select {
		case err := <-returned:
			return err
		case f.end <- struct{}{}:
		case <-time.After(5 * time.Second):
			require.Fail(t, "the call has not returned")
		}
	}
}

func TestARowWaitsForNoLargeFlushOfAnotherCaller(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	f.queue(greedy, 3000, false)
	for range flushers {
		require.Equal(t, map[int64]int{greedy: flushRows}, f.next(t))
	}
	first := f.queue(modest, 1, false)
	require.Equal(t, map[int64]int{modest: 1}, f.next(t), "while the others are under way")
	second := f.queue(third, 1, false)
	f.queue(third, 999, false)
	require.Empty(t, f.begun, "all flushers are busy")
	require.NoError(t, f.endUntil(t, first))
	require.NoError(t, f.endUntil(t, second))
	for of := f.next(t); of[third] == 0; of = f.next(t) {
		require.LessOrEqual(t, of[greedy], flushRows)
	}
}

func TestFewRowsWaitForTheFlushUnderWay(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	f.queue(greedy, 1, false)
	require.Equal(t, map[int64]int{greedy: 1}, f.next(t), "nothing is under way")
	few := f.queue(greedy, besideRows-1, false)
	require.Empty(t, f.begun)
	more := f.queue(greedy, 1, false)
	require.Equal(t, map[int64]int{greedy: besideRows}, f.next(t), "enough for a flush beside the first")
	last := f.queue(greedy, 2, false)
	require.NoError(t, f.endUntil(t, few))
	require.NoError(t, f.endUntil(t, more))
	require.Equal(t, map[int64]int{greedy: 2}, f.next(t), "taken by the flusher that ended last")
	require.NoError(t, f.endUntil(t, last))
}

func TestEachFlushTakesAnEqualPartOfEveryCaller(t *testing.T) {
	t.Parallel()
	var l callerQueues[int64]
	take := func(limit int) map[int64]int {
		of := map[int64]int{}
		for _, caller := range l.take(limit, anyCaller) {
			of[caller]++
		}
		return of
	}
	l.push(greedy, slices.Repeat([]int64{greedy}, 700)...)
	l.push(modest, modest)
	require.Equal(t, map[int64]int{greedy: 50, modest: 1}, take(100))
	require.Equal(t, map[int64]int{greedy: 100}, take(100))
	l.push(third, third, third)
	require.Equal(t, map[int64]int{greedy: 1}, take(1))
	require.Equal(t, map[int64]int{third: 1}, take(1), "greedy was served last")
	l.push(modest, modest)
	require.Equal(t, map[int64]int{greedy: 1}, take(1))
	require.Equal(t, map[int64]int{third: 1}, take(1))
	require.Equal(t, map[int64]int{modest: 1}, take(1))
	require.Equal(t, map[int64]int{greedy: 548}, take(1000))
	require.Zero(t, l.total)
	require.Empty(t, l.byCaller)
}

func TestACallerLeavesRoomForRowsOfOthers(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	f.queue(greedy, flushRows, false)
	f.queue(greedy, flushRows, false)
	for range flushers {
		f.next(t)
	}
	rest := f.queue(greedy, maxQueued/2, false)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(<-f.queue(greedy, 1, false)), "half of the queue is one caller's at most")
	modestly := f.queue(modest, 1000, false)
	thirdly := f.queue(third, 1000, false)
	close(f.end)
	require.NoError(t, <-modestly)
	require.NoError(t, <-thirdly)
	require.NoError(t, <-rest)
	require.NoError(t, <-f.queue(greedy, 1, false), "there is room again")
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.underWay)+len(f.waiting.byCaller) == 0
	}, 5*time.Second, time.Millisecond, "nothing is kept of callers without rows")
}

func TestFailedRowsDelayOnlyTheirCaller(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	for range flushers {
		f.queue(greedy, flushRows, false)
		f.next(t)
	}
	f.queue(third, 1, false)
	f.next(t)
	f.queue(greedy, 2, true)
	modestly := f.queue(modest, 2, false)
	require.NoError(t, f.endUntil(t, modestly))
}

func TestPlacesGoToTheCallerServedLongestAgo(t *testing.T) {
	t.Parallel()
	places := newFairLimiter(2, 1)
	require.NoError(t, places.acquire(t.Context(), greedy))
	require.NoError(t, places.acquire(t.Context(), modest))
	order := make(chan string, 10)
	wait := func(caller int64, n int) {
		before := places.Count()
		go func() {
			require.NoError(t, places.acquire(t.Context(), caller))
			order <- fmt.Sprint(caller, n)
		}()
		require.Eventually(t, func() bool { return places.Count() > before }, 5*time.Second, 10*time.Millisecond)
	}
	for n := range 3 {
		wait(greedy, n)
	}
	wait(third, 0)
	places.release(modest)
	require.Equal(t, fmt.Sprint(third, 0), <-order, "greedy has its share")
	places.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 0), <-order)
	wait(modest, 0)
	places.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 1), <-order, "it waits for longer")
	soon, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- places.acquire(soon, third) }()
	require.Eventually(t, func() bool { return places.Count() == 3 }, 5*time.Second, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	places.release(greedy)
	require.Equal(t, fmt.Sprint(modest, 0), <-order)
	places.release(third)
	require.Equal(t, fmt.Sprint(greedy, 2), <-order)
	places.release(greedy)
	places.release(modest)
	require.Empty(t, places.used)
	require.Zero(t, places.taken)
}

// Count is how many wait.
func (t *fairLimiter) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting.total
}
