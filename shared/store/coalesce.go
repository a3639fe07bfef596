package store

import (
	"context"
	"sync"
	"time"
)

// Bounds of group commit.
const (
	flushRows  = 500              // rows in one transaction
	flushers   = 2                // transactions under way at once
	maxQueued  = 10_000           // rows waiting; more are refused
	flushLimit = 15 * time.Second // a flush, its second try and its row-by-row run
)

// coalescer is group commit: calls that arrive while transactions are under
// way share the next one. A flush starts when the previous one returns, never
// on a timer, so a lone call waits for nobody. A caller is released only after
// its own commit. There are goroutines only while there is work.
type coalescer[In, Out any] struct {
	// flush commits all rows or none and answers each in order. An error
	// means that none is known to be committed.
	flush func(ctx context.Context, rows []In) ([]Out, error)

	mu      sync.Mutex
	queue   []*entry[In, Out]
	running int
}

type entry[In, Out any] struct {
	in   In
	out  Out
	err  error
	done *sync.WaitGroup
}

func newCoalescer[In, Out any](flush func(context.Context, []In) ([]Out, error)) *coalescer[In, Out] {
	return &coalescer[In, Out]{flush: flush}
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
		c.mu.Lock()
		n := min(len(c.queue), flushRows)
		if n == 0 {
			c.running--
			c.mu.Unlock()
			return
		}
		batch := c.queue[:n:n]
		c.queue = c.queue[n:]
		c.mu.Unlock()

		c.commit(batch)
		for _, e := range batch {
			e.done.Done()
		}
	}
}

// commit flushes a batch and sets each row's answer. A flush that fails for
// one row's sake is run again row by row, so that only that row's caller
// hears of it; a failure that every row shares is not repeated 500 times.
func (c *coalescer[In, Out]) commit(batch []*entry[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()

	rows := make([]In, len(batch))
	for i, e := range batch {
		rows[i] = e.in
	}
	outs, err := c.flush(ctx, rows)
	switch {
	case err == nil:
		for i, e := range batch {
			e.out = outs[i]
		}
	case len(batch) > 1 && oneRowsFault(err):
		for i := range batch {
			c.commit(batch[i : i+1])
		}
	default:
		for _, e := range batch {
			e.err = err
		}
	}
}
