package tasks

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// A claim reads the head of the index task_live_ready. While an old snapshot is open, such as that of a long
// transaction, Postgres cannot remove the index entries of the tasks that were claimed after it. A claim that starts at
// the head scans all these dead entries. After ten minutes at 1,000 tasks a second, each claim takes 0.2 s, and ten
// claims a second need more than two cores.
//
// So each process keeps in memory the position that its claims have reached in each priority bucket of a queue: the
// low-water mark. If claims from the head are slow because of dead rows, claims start at the marks, and only a scan in
// the background reads the entries below the marks. The scan sets the marks again. It also sweeps due tasks, which
// claims do only while no marks are in use. If a task becomes pending below a mark, for example for a retry, this
// process does not claim it before the next scan. The same is true of a task in a bucket that this process does not
// know.
const (
	slowClaim  = 20 * time.Millisecond // a claim that takes at least this long is slow
	slowInARow = 3                     // after so many slow claims in a row, a scan in the background decides whether marks are used
	manyDead   = 20_000                // marks are used if task_live has at least this many dead rows
	scanFactor = 20                    // the wait after a scan in the background, as a multiple of the duration of the scan
	scanLimit  = 10 * time.Second      // the longest wait between two scans, and the timeout of a scan
	markMargin = time.Second           // marks stay this far behind: a task may be committed later than a task with a newer id
)

// priorityBucket stands for the tasks of a queue with the same priority and retry count.
type priorityBucket struct {
	priority   int16
	retryCount int16
	low        task.ID // the low-water mark; in the result of firstPending, the id of the first pending task
}

// lowWaterMarks has the low-water marks of the queues that this process claims from.
type lowWaterMarks struct {
	mu     sync.Mutex
	queues map[string]*queueMarks
}

type queueMarks struct {
	buckets   []priorityBucket // in claim order
	slow      int              // consecutive slow claims from the head of the queue
	inUse     bool
	scheduled bool          // a scan in the background is waiting or running
	interval  time.Duration // wait before the next scan
}

// maxMarkedQueues limits the queues in lowWaterMarks. When lowWaterMarks is full, the queues without marks in use are
// removed. If it is still full, it is cleared, and claims start at the head again.
const maxMarkedQueues = 1000

// queue returns the marks of a queue. mu must be held.
func (m *lowWaterMarks) queue(name string) *queueMarks {
	q := m.queues[name]
	if q == nil {
		if m.queues == nil {
			m.queues = map[string]*queueMarks{}
		}
		if len(m.queues) >= maxMarkedQueues {
			maps.DeleteFunc(m.queues, func(_ string, q *queueMarks) bool { return !q.inUse && !q.scheduled })
		}
		if len(m.queues) >= maxMarkedQueues {
			clear(m.queues)
		}
		q = &queueMarks{}
		m.queues[name] = q
	}
	return q
}

// of returns the priority buckets of a queue, in claim order. If the marks of the queue are not in use, it returns nil.
func (m *lowWaterMarks) of(queue string) []priorityBucket {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[queue]; q != nil && q.inUse {
		return slices.Clone(q.buckets)
	}
	return nil
}

// observe records how long a claim (or hasWork) from the head of the queue took. It reports whether at least slowInARow
// consecutive claims were slow. A fast claim that found nothing does not reset the count: the queue may be paused, and a
// claim of a paused queue reads no entries.
func (m *lowWaterMarks) observe(queue string, took time.Duration, found bool) (slow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues[queue] == nil && took < slowClaim {
		return false // nothing to record: a sender may poll any number of queues that do not exist
	}
	q := m.queue(queue)
	if took >= slowClaim {
		q.slow++
	} else if found {
		q.slow = 0
	}
	return q.slow >= slowInARow
}

// advance raises the mark of each bucket to markMargin before its newest claimed task. It never lowers a mark.
func (m *lowWaterMarks) advance(queue string, claimed []Claimed) {
	if len(claimed) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	for _, c := range claimed {
		reached := priorityBucket{c.Priority, c.RetryCount, lowBefore(c.ID.Time())}
		if i, known := slices.BinarySearchFunc(q.buckets, reached, compareBuckets); !known {
			q.buckets = slices.Insert(q.buckets, i, reached)
		} else if reached.low.Compare(q.buckets[i].low) > 0 {
			q.buckets[i] = reached
		}
	}
}

func lowBefore(t time.Time) task.ID { return task.IDFloor(t.Add(-markMargin)) }

// schedule reports whether to start a scan in the background, and after which time. Each queue has at most one scan
// that is waiting or running.
func (m *lowWaterMarks) schedule(queue string) (in time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	if q.scheduled {
		return 0, false
	}
	q.scheduled = true
	return q.interval, true
}

// endScan ends a scan in the background that began at start. pending is the result of firstPending. endScan sets the
// mark of each bucket to markMargin before start, since new tasks have newer ids, or to the first pending task if that
// is older. missed is the number of buckets with a pending task that claims would not have found.
func (m *lowWaterMarks) endScan(queue string, pending []priorityBucket, start time.Time, inUse bool) (missed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	q.scheduled, q.interval = false, min(scanFactor*time.Since(start), scanLimit)
	if !inUse {
		q.slow, q.interval = 0, 0
	}
	former := slices.Clone(q.buckets)
	for i := range q.buckets {
		q.buckets[i].low = lowBefore(start)
	}
	for _, first := range pending {
		i, known := slices.BinarySearchFunc(former, first, compareBuckets)
		if !known || first.low.Compare(former[i].low) < 0 {
			missed++
		}
		if !known {
			former = slices.Insert(former, i, first)
			q.buckets = slices.Insert(q.buckets, i, first)
		} else if first.low.Compare(q.buckets[i].low) < 0 {
			q.buckets[i] = first
		}
	}
	q.inUse = inUse && len(q.buckets) > 0
	return missed
}

func compareBuckets(a, b priorityBucket) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.retryCount, b.retryCount))
}

// bucketColumns returns the array parameters of claimRowsAbove: priorities, retry counts and marks. It returns nil if
// there are no buckets.
func bucketColumns(buckets []priorityBucket) []any {
	if len(buckets) == 0 {
		return nil
	}
	return []any{
		store.Column(buckets, func(b priorityBucket) int16 { return b.priority }),
		store.Column(buckets, func(b priorityBucket) int16 { return b.retryCount }),
		store.Column(buckets, func(b priorityBucket) task.ID { return b.low }),
	}
}
