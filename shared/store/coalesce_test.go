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

// row is a row of a caller; a bad one makes its flush fail.
type row struct {
	caller int64
	bad    bool
}

// flushes is a coalescer whose flushes start on a channel and end when the test allows it.
type flushes struct {
	*Coalescer[row, int]
	started chan []row
	end     chan struct{}
}

func newFlushes() *flushes {
	f := &flushes{started: make(chan []row, 100), end: make(chan struct{})}
	f.Coalescer = NewCoalescer(func(r row) int64 { return r.caller }, func(_ context.Context, rows []row, _ bool) ([]int, error) {
		f.started <- rows
		<-f.end
		if slices.ContainsFunc(rows, func(r row) bool { return r.bad }) {
			return nil, &pgconn.PgError{Code: "40P01"}
		}
		return make([]int, len(rows)), nil
	})
	return f
}

// queue enqueues n rows of a caller; done receives the error of the last one.
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

// next returns the number of rows of each caller in the next flush that starts.
func (f *flushes) next(t *testing.T) map[int64]int {
	t.Helper()
	select {
	case rows := <-f.started:
		byCaller := map[int64]int{}
		for _, r := range rows {
			byCaller[r.caller]++
		}
		return byCaller
	case <-time.After(5 * time.Second):
		require.Fail(t, "no flush started")
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

func TestRowDoesNotWaitForLargeFlushOfAnotherCaller(t *testing.T) {
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
	require.Empty(t, f.started, "all flushers are busy")
	require.NoError(t, f.endUntil(t, first))
	require.NoError(t, f.endUntil(t, second))
	for byCaller := f.next(t); byCaller[third] == 0; byCaller = f.next(t) {
		require.LessOrEqual(t, byCaller[greedy], flushRows)
	}
}

func TestFewRowsWaitForTheFlushUnderWay(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	f.queue(greedy, 1, false)
	require.Equal(t, map[int64]int{greedy: 1}, f.next(t), "nothing is under way")
	few := f.queue(greedy, concurrentRows-1, false)
	require.Empty(t, f.started)
	more := f.queue(greedy, 1, false)
	require.Equal(t, map[int64]int{greedy: concurrentRows}, f.next(t), "enough for a flush beside the first")
	last := f.queue(greedy, 2, false)
	require.NoError(t, f.endUntil(t, few))
	require.NoError(t, f.endUntil(t, more))
	require.Equal(t, map[int64]int{greedy: 2}, f.next(t), "the flusher that ended takes the waiting rows")
	require.NoError(t, f.endUntil(t, last))
}

func TestTakeSharesEquallyAmongCallers(t *testing.T) {
	t.Parallel()
	var q callerQueues[int64]
	take := func(limit int) map[int64]int {
		byCaller := map[int64]int{}
		for _, caller := range q.take(limit, anyCaller) {
			byCaller[caller]++
		}
		return byCaller
	}
	q.push(greedy, slices.Repeat([]int64{greedy}, 700)...)
	q.push(modest, modest)
	require.Equal(t, map[int64]int{greedy: 50, modest: 1}, take(100))
	require.Equal(t, map[int64]int{greedy: 100}, take(100))
	q.push(third, third, third)
	require.Equal(t, map[int64]int{greedy: 1}, take(1))
	require.Equal(t, map[int64]int{third: 1}, take(1), "greedy was served last")
	q.push(modest, modest)
	require.Equal(t, map[int64]int{greedy: 1}, take(1))
	require.Equal(t, map[int64]int{third: 1}, take(1))
	require.Equal(t, map[int64]int{modest: 1}, take(1))
	require.Equal(t, map[int64]int{greedy: 548}, take(1000))
	require.Zero(t, q.total)
	require.Empty(t, q.byCaller)
}

func TestOneCallerFillsAtMostHalfOfTheQueue(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	f.queue(greedy, flushRows, false)
	f.queue(greedy, flushRows, false)
	for range flushers {
		f.next(t)
	}
	rest := f.queue(greedy, maxQueued/2, false)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(<-f.queue(greedy, 1, false)), "the queue is half full")
	ofModest := f.queue(modest, 1000, false)
	ofThird := f.queue(third, 1000, false)
	close(f.end)
	require.NoError(t, <-ofModest)
	require.NoError(t, <-ofThird)
	require.NoError(t, <-rest)
	require.NoError(t, <-f.queue(greedy, 1, false), "there is room again")
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.underWay)+len(f.waiting.byCaller) == 0
	}, time.Minute, time.Millisecond, "nothing is kept of callers without rows")
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
	require.NoError(t, f.endUntil(t, f.queue(modest, 2, false)))
}

func TestSlotGoesToTheCallerServedLongestAgo(t *testing.T) {
	t.Parallel()
	slots := newFairLimiter(2, 1)
	require.NoError(t, slots.acquire(t.Context(), greedy))
	require.NoError(t, slots.acquire(t.Context(), modest))
	served := make(chan string, 10)
	wait := func(caller int64, n int) {
		before := slots.waitingCalls()
		go func() {
			require.NoError(t, slots.acquire(t.Context(), caller))
			served <- fmt.Sprint(caller, n)
		}()
		require.Eventually(t, func() bool { return slots.waitingCalls() > before }, time.Minute, 10*time.Millisecond)
	}
	for n := range 3 {
		wait(greedy, n)
	}
	wait(third, 0)
	slots.release(modest)
	require.Equal(t, fmt.Sprint(third, 0), <-served, "greedy has its share")
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 0), <-served)
	wait(modest, 0)
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 1), <-served, "greedy has waited longer than modest")
	soon, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- slots.acquire(soon, third) }()
	require.Eventually(t, func() bool { return slots.waitingCalls() == 3 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(modest, 0), <-served)
	slots.release(third)
	require.Equal(t, fmt.Sprint(greedy, 2), <-served)
	slots.release(greedy)
	slots.release(modest)
	require.Empty(t, slots.byCaller)
	require.Zero(t, slots.inUse)
}
