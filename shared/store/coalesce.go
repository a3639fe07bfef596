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
	flushers   = 2                // transactions under way at once, and as many that run rows alone
	maxQueued  = 10_000           // rows waiting; more are refused
	flushLimit = 15 * time.Second // a flush with all its tries, rows run alone included
)

// coalescer is group commit: calls that arrive while transactions are under
// way share the next one. A flush starts when the previous one returns, never
// on a timer, so a lone call waits for nobody. A caller is released only after
// its own commit. There are goroutines only while there is work.
type coalescer[In, Out any] struct {
	// flush commits all rows or none and answers each in order. An error
	// means that none is known to be committed. alone says that the row failed
	// in company: it is the one at fault or a neighbour of it, and has waited.
	flush func(ctx context.Context, rows []In, alone bool) ([]Out, error)

	mu      sync.Mutex
	queue   []*entry[In, Out]
	running int
	singles chan struct{} // a place for each flush whose rows are run alone
}

type entry[In, Out any] struct {
	in   In
	out  Out
	err  error
	done *sync.WaitGroup
}

func newCoalescer[In, Out any](flush func(ctx context.Context, rows []In, alone bool) ([]Out, error)) *coalescer[In, Out] {
	return &coalescer[In, Out]{flush: flush, singles: make(chan struct{}, flushers)}
}

// do runs the rows, each with its own answer or error in order, and returns
// after the last is committed or refused. It does not stop early when a caller
// leaves: what was queued is committed.
func (c *coalescer[In, Out]) do(rows []In) ([]Out, []error) {
	var done sync.WaitGroup
	entries := make([]entry[In, Out], len(rows))
	for i, row := range rows {
		entries[i] = entry[In, Out]{in: row, done: &done}
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

func (c *coalescer[In, Out]) enqueue(entries []entry[In, Out], done *sync.WaitGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue)+len(entries) > maxQueued {
		return false
	}
	done.Add(len(entries))
	for i := range entries {
		c.queue = append(c.queue, &entries[i])
	}
	for started := 0; c.running < flushers && started*flushRows < len(c.queue); started++ {
		c.running++
		go c.run()
	}
	return true
}

func (c *coalescer[In, Out]) run() {
	for {
		batch := c.next()
		if batch == nil {
			return
		}
		c.commit(batch)
		clear(batch) // the queue's array outlives the burst that made it
	}
}

// next takes the next batch; nil ends the flusher.
func (c *coalescer[In, Out]) next() []*entry[In, Out] {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.queue), flushRows)
	if n == 0 {
		c.running--
		c.queue = nil
		return nil
	}
	batch := c.queue[:n:n]
	c.queue = c.queue[n:]
	return batch
}

// commit flushes a batch and releases its callers. A flush that fails for one
// row's sake is run again row by row, so that only that row's caller hears of
// it, and aside, so that nobody else waits for it; a failure that every row
// shares is not repeated 500 times.
func (c *coalescer[In, Out]) commit(batch []*entry[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	err := c.try(ctx, batch, false)
	if len(batch) > 1 && oneRowsFault(err) {
		rows := append([]*entry[In, Out](nil), batch...)
		go func() {
			defer cancel()
			c.alone(ctx, rows, err)
		}()
		return
	}
	cancel()
	release(batch, err)
}

// alone runs rows one by one within the time that is left of their flush.
func (c *coalescer[In, Out]) alone(ctx context.Context, rows []*entry[In, Out], err error) {
	select {
	case c.singles <- struct{}{}:
		defer func() { <-c.singles }()
	case <-ctx.Done():
		release(rows, err)
		return
	}
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
