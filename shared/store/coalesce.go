package store

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of group commit.
const (
	flushRows  = 500              // rows in one transaction
	shortRows  = 50               // rows in a transaction of the flusher that is kept for callers without one
	flushers   = 2                // transactions under way at once beside that one, and of one caller's rows that are run alone
	maxQueued  = 10_000           // rows waiting; more are refused
	flushLimit = 15 * time.Second // a flush with all its tries, rows run alone included
)

// coalescer is group commit: calls that arrive while transactions are under
// way share the next one. A flush starts when the previous one returns, never
// on a timer, so a lone call waits for nobody. A call is released only after
// its own commit. There are goroutines only while there is work.
//
// Callers share it fairly. Rows wait in a queue for each caller, and a flush takes
// an equal part of each queue. One more flusher is kept for callers with no row in a
// flush under way: it takes few rows, so that a single row never waits for a large
// flush of others. A flush that fails is divided by callers before it is divided by
// rows.
type coalescer[In, Out any] struct {
	// flush commits all rows or none and answers each in order. An error
	// means that none is known to be committed. alone says that the row failed
	// in company: it is the one at fault or a neighbour of it, and has waited.
	flush  func(ctx context.Context, rows []In, alone bool) ([]Out, error)
	caller func(In) int64

	mu       sync.Mutex
	waiting  callerQueues[*entry[In, Out]]
	underWay map[int64]int // flushes that have rows of a caller; no entry for none
	running  int           // flushers, without the short one
	short    bool          // the one kept for callers without a flush is running
	singles  *turns        // a place for each flush whose rows are run alone
}

type entry[In, Out any] struct {
	in     In
	caller int64
	out    Out
	err    error
	done   *sync.WaitGroup
}

func newCoalescer[In, Out any](caller func(In) int64, flush func(ctx context.Context, rows []In, alone bool) ([]Out, error)) *coalescer[In, Out] {
	return &coalescer[In, Out]{flush: flush, caller: caller, underWay: map[int64]int{}, singles: newTurns(flushers+1, flushers)}
}

// do runs the rows, which are of one caller, each with its own answer or error in
// order, and returns after the last is committed or refused. It does not stop early
// when a caller leaves: what was queued is committed.
func (c *coalescer[In, Out]) do(rows []In) ([]Out, []error) {
	var done sync.WaitGroup
	entries := make([]entry[In, Out], len(rows))
	for i, row := range rows {
		entries[i] = entry[In, Out]{in: row, caller: c.caller(row), done: &done}
	}
	if !c.enqueue(entries, &done) {
		for i := range entries {
			entries[i].err = errBusy()
		}
	}
	done.Wait()
	outs, errs := make([]Out, len(rows)), make([]error, len(rows))
	for i := range entries {
		outs[i], errs[i] = entries[i].out, entries[i].err
	}
	return outs, errs
}

// enqueue refuses rows of a caller that would have more waiting than there is room
// left for others: one caller alone may fill half of the queue.
func (c *coalescer[In, Out]) enqueue(entries []entry[In, Out], done *sync.WaitGroup) bool {
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
	if len(c.waiting.of[caller])+len(rows) > maxQueued-c.waiting.total-len(rows) {
		return false
	}
	done.Add(len(rows))
	c.waiting.push(caller, rows...)
	for c.running < flushers && c.waiting.total > 0 {
		c.running++
		go c.run(false, c.next(false))
	}
	if !c.short && c.waiting.total > 0 && c.isIdle(caller) {
		c.short = true
		go c.run(true, c.next(true))
	}
	return true
}

// isIdle says that no flush under way has rows of the caller.
func (c *coalescer[In, Out]) isIdle(caller int64) bool { return c.underWay[caller] == 0 }

func (c *coalescer[In, Out]) run(short bool, batch []*entry[In, Out]) {
	for batch != nil {
		c.commit(batch)
		c.mu.Lock()
		c.count(batch, -1)
		batch = c.next(short)
		c.mu.Unlock()
	}
}

// next takes the next batch, in which the rows of each caller are together; nil ends
// the flusher. mu is held.
func (c *coalescer[In, Out]) next(short bool) (batch []*entry[In, Out]) {
	if short {
		batch = c.waiting.take(shortRows, c.isIdle)
		c.short = batch != nil
	} else if batch = c.waiting.take(flushRows, anyCaller); batch == nil {
		c.running--
	}
	c.count(batch, 1)
	return batch
}

func anyCaller(int64) bool { return true }

// count adds n flushes to the callers of a batch; mu is held.
func (c *coalescer[In, Out]) count(batch []*entry[In, Out], n int) {
	for i, e := range batch {
		if i > 0 && batch[i-1].caller == e.caller {
			continue
		}
		if c.underWay[e.caller] += n; c.underWay[e.caller] == 0 {
			delete(c.underWay, e.caller)
		}
	}
}

// commit flushes a batch and releases its calls. A flush that fails for one
// row's sake is run again in two parts, with half of its callers in each, and that of
// one caller row by row, so that only that row's call fails; the latter aside, so that
// nobody else waits for it. A failure that every row shares is not repeated 500 times.
func (c *coalescer[In, Out]) commit(batch []*entry[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	err := c.try(ctx, batch, false)
	switch parts := halves(batch); {
	case len(batch) == 1 || !oneRowsFault(err):
		cancel()
		release(batch, err)
	case parts != nil:
		cancel()
		c.commit(parts[0])
		c.commit(parts[1])
	default:
		go func() {
			defer cancel()
			c.alone(ctx, batch, err)
		}()
	}
}

// halves divides a batch between two of its callers; nil when it has only one.
func halves[In, Out any](batch []*entry[In, Out]) [][]*entry[In, Out] {
	var starts []int // of callers, but for the first
	for i := 1; i < len(batch); i++ {
		if batch[i].caller != batch[i-1].caller {
			starts = append(starts, i)
		}
	}
	if len(starts) == 0 {
		return nil
	}
	middle := starts[len(starts)/2]
	return [][]*entry[In, Out]{batch[:middle], batch[middle:]}
}

// alone runs the rows of one caller one by one within the time that is left of their
// flush.
func (c *coalescer[In, Out]) alone(ctx context.Context, rows []*entry[In, Out], err error) {
	caller := rows[0].caller
	if c.singles.take(ctx, caller) != nil {
		release(rows, err)
		return
	}
	defer c.singles.give(caller)
	for i := range rows {
		release(rows[i:i+1], c.try(ctx, rows[i:i+1], true))
	}
}

// try flushes rows once and keeps their answers. A panic is an error of these
// rows, not the end of the process.
func (c *coalescer[In, Out]) try(ctx context.Context, rows []*entry[In, Out], alone bool) (err error) {
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

func release[In, Out any](rows []*entry[In, Out], err error) {
	for _, e := range rows {
		e.err = err
		e.done.Done()
	}
}
