package tasks

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// A claim reads the head of its index. While an old snapshot is open anywhere on the server,
// index entries of tasks claimed long ago cannot be removed, and every claim scans them. After
// slow claims, a process keeps in memory the position that its claims have reached in each
// priority bucket. It claims from these low-water marks for a short time and then scans from the start
// again. When a claim above the marks finds nothing, a plain claim follows, so an empty response
// is always correct. A task that is added below a mark waits at most for that time, and only
// while there are other tasks. Marks are not stored in the database.
const (
	slowClaim  = 20 * time.Millisecond
	slowInARow = 3  // slow claims before marks are used
	markFactor = 20 // marks are used for this many times the duration of the slow claim
	markMargin = time.Second
	markLimit  = 2 * time.Second
)

type priorityBucket struct {
	priority   int16
	retryCount int16
	low        task.ID
}

type lowWaterMarks struct {
	mu     sync.Mutex
	queues map[string]*queueMarks
}

type queueMarks struct {
	buckets []priorityBucket // in claim order
	until   time.Time
	slow    int // consecutive slow plain claims
}

// of returns the priority buckets of a queue, in claim order, while its marks are in use.
func (m *lowWaterMarks) of(queue string, now time.Time) []priorityBucket {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[queue]
	if q == nil || now.After(q.until) {
		return nil
	}
	return slices.Clone(q.buckets)
}

// observe records the duration of a plain claim, and sets marks after several slow ones in a
// row. A fast claim that found nothing changes nothing, since a paused queue is not scanned.
func (m *lowWaterMarks) observe(queue string, claimed []Claimed, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[queue]
	if took < slowClaim {
		if len(claimed) > 0 {
			delete(m.queues, queue)
		}
		return
	}
	if q == nil {
		q = &queueMarks{}
		if m.queues == nil {
			m.queues = map[string]*queueMarks{}
		}
		m.queues[queue] = q
	}
	if q.slow++; q.slow >= slowInARow && len(claimed) > 0 {
		q.buckets, q.until = nil, time.Now().Add(min(markFactor*took, markLimit))
		q.advance(claimed)
	}
}

// advance moves the marks up to the tasks of a claim above them.
func (m *lowWaterMarks) advance(queue string, claimed []Claimed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[queue]; q != nil {
		q.advance(claimed)
	}
}

func (q *queueMarks) advance(claimed []Claimed) {
	for _, c := range claimed {
		low := task.IDFloor(c.ID.Time().Add(-markMargin))
		i, found := slices.BinarySearchFunc(q.buckets, c, func(b priorityBucket, c Claimed) int {
			return cmp.Or(cmp.Compare(b.priority, c.Priority), cmp.Compare(b.retryCount, c.RetryCount))
		})
		if !found {
			q.buckets = slices.Insert(q.buckets, i, priorityBucket{c.Priority, c.RetryCount, low})
		} else if low.Compare(q.buckets[i].low) > 0 {
			q.buckets[i].low = low
		}
	}
}

// bucketColumns returns the arrays of claimAboveSQL.
func bucketColumns(buckets []priorityBucket) []any {
	return []any{
		store.Column(buckets, func(b priorityBucket) int16 { return b.priority }),
		store.Column(buckets, func(b priorityBucket) int16 { return b.retryCount }),
		store.Column(buckets, func(b priorityBucket) task.ID { return b.low }),
	}
}
