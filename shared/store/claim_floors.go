package store

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// A claim reads the left edge of its index. While an old snapshot is held
// somewhere on the server, the entries of tasks long claimed cannot be removed
// and every claim walks them. A claimer that notices keeps, in memory, how far
// it has come in each lane and claims from there for a while, then looks at
// everything once more. A look above the floors that finds nothing is followed
// by a plain one, so an empty answer is always the truth; a task that entered
// below a floor is late by that while at most, and only as long as others come.
// Nothing is stored that could be wrong.
const (
	slowClaim   = 20 * time.Millisecond
	slowInARow  = 3  // slow claims before floors are believed to help
	floorFactor = 20 // floors hold for this many times the slow claim
	floorMargin = time.Second
	floorLimit  = 2 * time.Second
)

type lane struct {
	priority   int16
	retryCount int16
	low        task.ID
}

type claimFloors struct {
	mu     sync.Mutex
	queues map[string]*queueFloors
}

type queueFloors struct {
	lanes []lane // in claim order
	until time.Time
	slow  int // slow plain claims in a row
}

// of gives the lanes of a queue in claim order while its floors hold.
func (f *claimFloors) of(queue string, now time.Time) []lane {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[queue]
	if q == nil || now.After(q.until) {
		return nil
	}
	return slices.Clone(q.lanes)
}

// learn judges a plain claim: floors are set after several slow ones in a row.
// A quick one that found nothing proves nothing, as a paused queue is not walked.
func (f *claimFloors) learn(queue string, claimed []Claimed, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[queue]
	if took < slowClaim {
		if len(claimed) > 0 {
			delete(f.queues, queue)
		}
		return
	}
	if q == nil {
		q = &queueFloors{}
		if f.queues == nil {
			f.queues = map[string]*queueFloors{}
		}
		f.queues[queue] = q
	}
	if q.slow++; q.slow >= slowInARow && len(claimed) > 0 {
		q.lanes, q.until = nil, time.Now().Add(min(floorFactor*took, floorLimit))
		q.raise(claimed)
	}
}

// raise moves the floors up to what a claim above them reached.
func (f *claimFloors) raise(queue string, claimed []Claimed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q := f.queues[queue]; q != nil {
		q.raise(claimed)
	}
}

func (q *queueFloors) raise(claimed []Claimed) {
	for _, c := range claimed {
		low := task.IDFloor(c.ID.Time().Add(-floorMargin))
		i, found := slices.BinarySearchFunc(q.lanes, c, func(l lane, c Claimed) int {
			return cmp.Or(cmp.Compare(l.priority, c.Priority), cmp.Compare(l.retryCount, c.RetryCount))
		})
		if !found {
			q.lanes = slices.Insert(q.lanes, i, lane{c.Priority, c.RetryCount, low})
		} else if low.Compare(q.lanes[i].low) > 0 {
			q.lanes[i].low = low
		}
	}
}

// laneColumns gives claimAboveSQL its arrays.
func laneColumns(lanes []lane) []any {
	return []any{
		column(lanes, func(l lane) int16 { return l.priority }),
		column(lanes, func(l lane) int16 { return l.retryCount }),
		column(lanes, func(l lane) task.ID { return l.low }),
	}
}
