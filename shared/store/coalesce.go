package store

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Limits of group commit. A flusher is a goroutine that runs one flush after the other.
const (
	flushRows      = 500              // maximum rows of one flush
	reservedRows   = 50               // maximum rows of one flush of the reserved flusher
	flushers       = 2                // flushers besides the reserved flusher; also the maximum number of calls of commitAgain that run at once for one caller
	concurrentRows = 200              // while another flusher runs, a flush starts only if at least so many rows wait (exception: see shouldFlush)
	maxQueued      = 10_000           // maximum waiting rows of all callers together (see enqueue)
	flushTimeout   = 15 * time.Second // timeout of a flush, including the tries that follow it (commitAgain); each half of a divided flush has its own
)

// Coalescer is group commit: calls that arrive while transactions are under way share the next
// transaction. A flush starts at once or when another flush ends, never on a timer. A call returns only
// after its own rows are committed or have failed. Goroutines exist only while there is work.
//
// Callers share a Coalescer fairly. Each caller has its own queue of rows and an equal share of a
// flush. One more flusher is reserved for callers with no row in a flush under way. This flusher takes few
// rows, so the first row of a caller does not wait until a large flush of other callers ends. A flush that fails because
// of a row (IsRowError) is divided by caller before it is divided by row.
type Coalescer[In, Out any] struct {
	// DivideOnTimeout divides a flush by caller also if it exceeded the statement_timeout. Set it before the first call of Do.
	DivideOnTimeout bool

	// flush commits all rows or none, and returns their results in order. After an error it may be
	// unknown whether the rows are committed. If alone is true, there is one row, which was in a failed flush
	// before, so it has already waited for locks.
	flush  func(ctx context.Context, rows []In, alone bool) ([]Out, error)
	caller func(In) int64

	mu       sync.Mutex
	waiting  callerQueues[*entry[In, Out]]
	underWay map[int64]int // for each caller, the flushes under way that have rows of the caller; no entry for 0
	running  int           // running flushers, without the reserved flusher
	reserved bool          // the reserved flusher is running
	retries  *fairLimiter  // a slot is one commitAgain
}

// entry is a row with its result. All rows of one call share done.
type entry[In, Out any] struct {
	in     In
	caller int64
	out    Out
	err    error
	done   *sync.WaitGroup
}

func NewCoalescer[In, Out any](caller func(In) int64, flush func(ctx context.Context, rows []In, alone bool) ([]Out, error)) *Coalescer[In, Out] {
	return &Coalescer[In, Out]{flush: flush, caller: caller, underWay: map[int64]int{}, retries: newFairLimiter(flushers+1, flushers)}
}

// Do commits the rows, all of one caller, and returns a result or error for each, in order. It has
// no context, because queued rows are committed even if their call is cancelled.
func (c *Coalescer[In, Out]) Do(rows []In) ([]Out, []error) {
	var done sync.WaitGroup
	entries := make([]entry[In, Out], len(rows))
	for i, row := range rows {
		entries[i] = entry[In, Out]{in: row, caller: c.caller(row), done: &done}
	}
	if !c.enqueue(entries, &done) {
		for i := range entries {
			entries[i].err = Busy()
		}
	}
	done.Wait()
	outs, errs := make([]Out, len(rows)), make([]error, len(rows))
	for i := range entries {
		outs[i], errs[i] = entries[i].out, entries[i].err
	}
	return outs, errs
}

// enqueue adds the rows to the waiting rows. If the caller would then have more waiting rows than maxQueued has free
// places, enqueue refuses the rows and returns false. So a single caller can fill at most half of maxQueued.
func (c *Coalescer[In, Out]) enqueue(entries []entry[In, Out], done *sync.WaitGroup) bool {
	if len(entries) == 0 {
		return true
	}
	rows := make([]*entry[In, Out], len(entries))
	for i := range entries {
		rows[i] = &entries[i]
	}
	caller := rows[0].caller
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting.byCaller[caller])+len(rows) > maxQueued-c.waiting.total-len(rows) {
		return false
	}
	done.Add(len(rows))
	c.waiting.push(caller, rows...)
	for c.running < flushers && c.shouldFlush(c.running) {
		c.running++
		go c.run(false, c.next(false))
	}
	if !c.reserved && c.waiting.total > 0 && c.hasNoFlush(caller) {
		c.reserved = true
		go c.run(true, c.next(true))
	}
	return true
}

// hasNoFlush reports whether no flush under way has rows of the caller.
func (c *Coalescer[In, Out]) hasNoFlush(caller int64) bool { return c.underWay[caller] == 0 }

func (c *Coalescer[In, Out]) run(reserved bool, batch []*entry[In, Out]) {
	for batch != nil {
		c.commit(batch)
		c.mu.Lock()
		c.count(batch, -1)
		batch = c.next(reserved)
		c.mu.Unlock()
	}
}

// next takes the next batch for a flusher. In a batch, the rows of each caller are together. If there
// is no batch for the flusher, next returns nil and counts the flusher as ended. mu must be held.
func (c *Coalescer[In, Out]) next(reserved bool) (batch []*entry[In, Out]) {
	if reserved {
		batch = c.waiting.take(reservedRows, c.hasNoFlush)
		c.reserved = batch != nil
	} else if c.shouldFlush(c.running - 1) {
		batch = c.waiting.take(flushRows, anyCaller)
	} else {
		c.running--
	}
	c.count(batch, 1)
	return batch
}

// shouldFlush reports whether to start a flush of the waiting rows. others is the number of other flushers that are
// running. One more flush costs Postgres as much as about 20 more rows. So if only few rows wait, they wait for the
// end of another flush. But if the reserved flusher is busy, a flush starts at once: otherwise a caller
// without a flush would wait for other callers. mu must be held.
func (c *Coalescer[In, Out]) shouldFlush(others int) bool {
	return c.waiting.total >= concurrentRows || c.waiting.total > 0 && (others == 0 || c.reserved)
}

func anyCaller(int64) bool { return true }

// count adds n to underWay for each caller of a batch. mu must be held.
func (c *Coalescer[In, Out]) count(batch []*entry[In, Out], n int) {
	for i, e := range batch {
		if i > 0 && batch[i-1].caller == e.caller {
			continue
		}
		if c.underWay[e.caller] += n; c.underWay[e.caller] == 0 {
			delete(c.underWay, e.caller)
		}
	}
}

// commit flushes a batch and lets its calls return. If single rows may be at fault (IsRowError), the batch is run again in
// two parts, each with half of the callers; a batch of one caller is run again row by row, so that only the rows at fault
// fail. After a statement_timeout (DivideOnTimeout), the rows of each caller are run again. commitAgain runs in goroutines of
// its own, so that other callers need not wait. After any other error, all rows of the batch fail.
func (c *Coalescer[In, Out]) commit(batch []*entry[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	err := c.try(ctx, batch, false)
	switch parts := splitByCaller(batch); {
	case len(parts) > 1 && c.DivideOnTimeout && SQLState(err) == CodeQueryCanceled:
		c.mu.Lock()
		c.count(batch, 1) // until the rows have run again
		c.mu.Unlock()
		go func() {
			defer cancel()
			var all sync.WaitGroup
			for _, rows := range parts {
				all.Go(func() {
					c.commitAgain(ctx, rows, err)
					c.mu.Lock()
					defer c.mu.Unlock()
					c.count(rows, -1)
				})
			}
			all.Wait()
		}()
	case len(batch) == 1 || !IsRowError(err) || ctx.Err() != nil: // without time left, the flush may have been committed: see commitAgain
		cancel()
		finish(batch, err)
	case len(parts) > 1:
		cancel()
		half := len(parts) / 2
		c.commit(slices.Concat(parts[:half]...))
		c.commit(slices.Concat(parts[half:]...))
	default:
		go func() {
			defer cancel()
			c.commitAgain(ctx, batch, err)
		}()
	}
}

// splitByCaller divides a batch into the rows of each caller.
func splitByCaller[In, Out any](batch []*entry[In, Out]) (parts [][]*entry[In, Out]) {
	for start, end := 0, 1; end <= len(batch); end++ {
		if end == len(batch) || batch[end].caller != batch[start].caller {
			parts, start = append(parts, batch[start:end]), end
		}
	}
	return parts
}

// commitAgain runs the rows of one caller after their flush failed with err, within the time that is left of the flush.
// After a row error (IsRowError) it runs them one by one, otherwise together first. If no slot of retries becomes free in
// this time, all rows fail with err.
//
// If the failed flush may have been committed, no time is left, because RetryLostCommit uses all of it. So commitAgain
// does not commit a row twice.
func (c *Coalescer[In, Out]) commitAgain(ctx context.Context, rows []*entry[In, Out], err error) {
	caller := rows[0].caller
	if c.retries.acquire(ctx, caller) != nil {
		finish(rows, err)
		return
	}
	defer c.retries.release(caller)
	ctx = WithCaller(ctx, caller) // limits the connections that one caller uses
	if !IsRowError(err) {
		if err = c.try(ctx, rows, false); len(rows) == 1 || !IsRowError(err) {
			finish(rows, err)
			return
		}
	}
	for i := range rows {
		finish(rows[i:i+1], c.try(ctx, rows[i:i+1], true))
	}
}

// try flushes rows once and stores the result of each row. A panic becomes an error.
func (c *Coalescer[In, Out]) try(ctx context.Context, rows []*entry[In, Out], alone bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	ins := make([]In, len(rows))
	for i, e := range rows {
		ins[i] = e.in
	}
	outs, err := c.flush(ctx, ins, alone)
	if err == nil {
		for i, e := range rows {
			e.out = outs[i]
		}
	}
	return err
}

// finish stores the error of the rows. A call returns when all its rows are finished.
func finish[In, Out any](rows []*entry[In, Out], err error) {
	for _, e := range rows {
		e.err = err
		e.done.Done()
	}
}
