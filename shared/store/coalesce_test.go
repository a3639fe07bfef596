package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

const greedy, modest, third = 1, 2, 3 // callers

// row is a row of a caller. A flush with a slow row exceeds the statement_timeout; any other flush with a bad row fails.
type row struct {
	caller int64
	bad    bool
	slow   bool
}

// flushes is a coalescer whose flushes wait until the test ends them.
type flushes struct {
	*Coalescer[row, int]
	started chan []row    // receives the rows of each flush that starts
	end     chan struct{} // each value sent ends one flush; close ends all
}

func newFlushes() *flushes {
	f := &flushes{started: make(chan []row, 100), end: make(chan struct{})}
	f.Coalescer = NewCoalescer(func(r row) int64 { return r.caller }, func(_ context.Context, rows []row, _ bool) ([]int, error) {
		f.started <- rows
		<-f.end
		if slices.ContainsFunc(rows, func(r row) bool { return r.slow }) {
			return nil, &pgconn.PgError{Code: CodeQueryCanceled}
		}
		if slices.ContainsFunc(rows, func(r row) bool { return r.bad }) {
			return nil, &pgconn.PgError{Code: "40P01"}
		}
		return make([]int, len(rows)), nil
	})
	return f
}

// enqueueRows enqueues n copies of r, as one call of Do. The channel receives the error of the last row.
func (f *flushes) enqueueRows(n int, r row) <-chan error {
	returned := make(chan error, 1)
	entries := make([]entry[row, int], n)
	var all sync.WaitGroup
	for i := range entries {
		entries[i] = entry[row, int]{in: r, caller: r.caller, done: &all}
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

// nextFlush waits until a flush starts, and returns how many rows of each caller it has.
func (f *flushes) nextFlush(t *testing.T) map[int64]int {
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

// endUntil ends flushes until a call of enqueueRows returns its error on the channel returned.
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
	f.enqueueRows(3000, row{caller: greedy})
	for range flushers {
		require.Equal(t, map[int64]int{greedy: flushRows}, f.nextFlush(t))
	}
	ofModest := f.enqueueRows(1, row{caller: modest})
	require.Equal(t, map[int64]int{modest: 1}, f.nextFlush(t), "while the flushes of greedy are in progress")
	ofThird := f.enqueueRows(1, row{caller: third})
	f.enqueueRows(999, row{caller: third})
	require.Empty(t, f.started, "all flushers are busy")
	require.NoError(t, f.endUntil(t, ofModest))
	require.NoError(t, f.endUntil(t, ofThird))
	for byCaller := f.nextFlush(t); byCaller[third] == 0; byCaller = f.nextFlush(t) {
		require.LessOrEqual(t, byCaller[greedy], flushRows)
	}
}

func TestFewRowsWaitForTheFlushInProgress(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	f.enqueueRows(1, row{caller: greedy})
	require.Equal(t, map[int64]int{greedy: 1}, f.nextFlush(t), "no other flush is in progress")
	few := f.enqueueRows(concurrentRows-1, row{caller: greedy})
	require.Empty(t, f.started)
	more := f.enqueueRows(1, row{caller: greedy})
	require.Equal(t, map[int64]int{greedy: concurrentRows}, f.nextFlush(t), "enough for a second flush at the same time")
	last := f.enqueueRows(2, row{caller: greedy})
	require.NoError(t, f.endUntil(t, few))
	require.NoError(t, f.endUntil(t, more))
	require.Equal(t, map[int64]int{greedy: 2}, f.nextFlush(t), "the flusher whose flush ended takes the waiting rows")
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
	f.enqueueRows(flushRows, row{caller: greedy})
	f.enqueueRows(flushRows, row{caller: greedy})
	for range flushers {
		f.nextFlush(t)
	}
	rest := f.enqueueRows(maxQueued/2, row{caller: greedy})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(<-f.enqueueRows(1, row{caller: greedy})), "the queue is half full")
	ofModest := f.enqueueRows(1000, row{caller: modest})
	ofThird := f.enqueueRows(1000, row{caller: third})
	close(f.end)
	require.NoError(t, <-ofModest)
	require.NoError(t, <-ofThird)
	require.NoError(t, <-rest)
	require.NoError(t, <-f.enqueueRows(1, row{caller: greedy}), "there is room again")
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.underWay)+len(f.waiting.byCaller) == 0
	}, time.Minute, time.Millisecond, "there is no entry for a caller without rows")
}

func TestFailedRowsDelayOnlyTheirCaller(t *testing.T) {
	t.Parallel()
	f := newFlushes()
	defer close(f.end)
	for range flushers {
		f.enqueueRows(flushRows, row{caller: greedy})
		f.nextFlush(t)
	}
	f.enqueueRows(1, row{caller: third})
	f.nextFlush(t)
	f.enqueueRows(2, row{caller: greedy, bad: true})
	require.NoError(t, f.endUntil(t, f.enqueueRows(2, row{caller: modest})))
}

func TestTimeoutFailsOnlyItsCallerIfFlushIsDivided(t *testing.T) {
	t.Parallel()
	rows := []row{{caller: greedy, slow: true}, {caller: greedy}, {caller: modest}, {caller: third, bad: true}, {caller: third}}
	for name, c := range map[string]struct {
		divide bool
		codes  []string // SQLSTATE of each row
		tries  []int    // how often each row was in a flush
	}{
		"divided":     {true, []string{"57014", "57014", "", "40P01", ""}, []int{2, 2, 2, 3, 3}},
		"not divided": {false, []string{"57014", "57014", "57014", "57014", "57014"}, []int{1, 1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFlushes()
			f.DivideOnTimeout = c.divide
			close(f.end)
			var done sync.WaitGroup
			done.Add(len(rows))
			batch := make([]*entry[row, int], len(rows))
			for i, r := range rows {
				batch[i] = &entry[row, int]{in: r, caller: r.caller, done: &done}
			}
			f.commit(batch)
			done.Wait()
			close(f.started)
			tries := map[row]int{}
			for flushed := range f.started {
				for _, r := range flushed {
					tries[r]++
				}
			}
			for i, r := range rows {
				require.Equal(t, c.codes[i], SQLState(batch[i].err), "%+v", r)
				require.Equal(t, c.tries[i], tries[r], "%+v", r)
			}
		})
	}
}

// RetryLostCommit uses all the time of a flush that may have been committed. Such a flush must not run again, not even in parts.
func TestFlushThatUsedAllItsTimeIsNotRunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := NewCoalescer(func(r row) int64 { return r.caller }, func(ctx context.Context, _ []row, _ bool) ([]int, error) {
			tries++
			<-ctx.Done()
			return nil, &pgconn.PgError{Code: CodeLockTimeout}
		})
		var done sync.WaitGroup
		done.Add(2)
		c.commit([]*entry[row, int]{{in: row{caller: greedy}, caller: greedy, done: &done}, {in: row{caller: modest}, caller: modest, done: &done}})
		done.Wait()
		require.Equal(t, 1, tries)
	})
}

func TestWaitingCallersGetSlotsInTurn(t *testing.T) {
	t.Parallel()
	slots := newFairLimiter(2, 1)
	require.NoError(t, slots.acquire(t.Context(), greedy))
	require.NoError(t, slots.acquire(t.Context(), modest))
	served := make(chan string, 10)
	startWaiting := func(caller int64, n int) { // n is the number of the call
		before := slots.waitingCalls()
		go func() {
			require.NoError(t, slots.acquire(t.Context(), caller))
			served <- fmt.Sprint(caller, n)
		}()
		require.Eventually(t, func() bool { return slots.waitingCalls() > before }, time.Minute, 10*time.Millisecond)
	}
	for n := range 3 {
		startWaiting(greedy, n)
	}
	startWaiting(third, 0)
	slots.release(modest)
	require.Equal(t, fmt.Sprint(third, 0), <-served, "greedy has its share of the slots already")
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 0), <-served)
	startWaiting(modest, 0)
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(greedy, 1), <-served, "modest began to wait after greedy's last turn")
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	go func() { cancelled <- slots.acquire(ctx, third) }()
	require.Eventually(t, func() bool { return slots.waitingCalls() == 3 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-cancelled, context.Canceled)
	slots.release(greedy)
	require.Equal(t, fmt.Sprint(modest, 0), <-served)
	slots.release(third)
	require.Equal(t, fmt.Sprint(greedy, 2), <-served)
	slots.release(greedy)
	slots.release(modest)
	require.Empty(t, slots.byCaller)
	require.Zero(t, slots.inUse)
}
