package tasks

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// A claim reads the head of its index. While an old snapshot is open anywhere on the server,
// index entries of tasks claimed long ago cannot be removed. A claim that starts at the head then
// scans them all: 0.2 s after ten minutes at 1,000 tasks a second, more than two cores can do for
// ten claims a second.
//
// So each process keeps in memory the position that its claims have reached in each priority bucket
// of a queue. If scans of the whole queue are slow because of dead rows, claims start at these
// low-water marks, and only a scan in the background reads the entries below them. The scan sets the
// marks again, and also processes due tasks. A task that becomes pending below a mark, for example a
// retry, or in a bucket that this process does not know, waits for the next scan.
const (
	slowScan   = 20 * time.Millisecond
	slowInARow = 3                // slow scans before a scan in the background decides whether marks are used
	manyDead   = 20_000           // dead rows of task_live from which marks are used
	scanFactor = 20               // time between two scans in the background, in durations of the first one
	scanLimit  = 10 * time.Second // the longest time between two scans, and the timeout of a scan
	markMargin = time.Second      // for ids that are older than claimed ones, but were committed later
)

// priorityBucket has the tasks of a queue with the same priority and retry count.
type priorityBucket struct {
	priority   int16
	retryCount int16
	low        task.ID // the low-water mark
}

type lowWaterMarks struct {
	mu     sync.Mutex
	queues map[string]*queueMarks
}

type queueMarks struct {
	buckets   []priorityBucket // in claim order
	slow      int              // consecutive slow scans by claims
	inUse     bool
	scheduled bool          // a scan in the background runs or will run
	interval  time.Duration // until the next scan
}

// maxMarkedQueues limits the queues in lowWaterMarks, which is cleared when it is full: claims then start
// at the head again.
const maxMarkedQueues = 1000

// queue returns the marks of a queue. mu must be held.
func (m *lowWaterMarks) queue(name string) *queueMarks {
	q := m.queues[name]
	if q == nil {
		if m.queues == nil || len(m.queues) >= maxMarkedQueues {
			m.queues = map[string]*queueMarks{}
		}
		q = &queueMarks{}
		m.queues[name] = q
	}
	return q
}

// of returns the priority buckets of a queue, in claim order, while its marks are in use.
func (m *lowWaterMarks) of(queue string) []priorityBucket {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[queue]; q != nil && q.inUse {
		return slices.Clone(q.buckets)
	}
	return nil
}

// observe records how long a scan from the head of the queue took, and reports whether slowInARow scans were
// slow. A fast scan that found nothing does not end such a row, since a claim does not scan a paused queue.
func (m *lowWaterMarks) observe(queue string, took time.Duration, found bool) (slow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	if took >= slowScan {
		q.slow++
	} else if found {
		q.slow = 0
	}
	return q.slow >= slowInARow
}

// advance moves the marks up to the claimed tasks.
func (m *lowWaterMarks) advance(queue string, claimed []Claimed) {
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

// schedule reports whether to start a scan in the background, and when. Each queue has one scan at a time.
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

// set ends a scan that began at the time start. It sets the mark of each bucket to the first pending task of the
// bucket in pending, or without one to start, since new tasks have newer ids. It returns how many buckets have a task
// that claims would not have found.
func (m *lowWaterMarks) set(queue string, pending []priorityBucket, start time.Time, inUse bool) (below int) {
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
			below++
		}
		if !known {
			former = slices.Insert(former, i, first)
			q.buckets = slices.Insert(q.buckets, i, first)
		} else if first.low.Compare(q.buckets[i].low) < 0 {
			q.buckets[i] = first
		}
	}
	q.inUse = inUse && len(q.buckets) > 0
	return below
}

func compareBuckets(a, b priorityBucket) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.retryCount, b.retryCount))
}

// scanLater schedules a scan in the background, unless one is scheduled.
func (st *Store) scanLater(queue string) {
	if in, ok := st.marks.schedule(queue); ok {
		time.AfterFunc(in, func() { st.scan(queue) })
	}
}

// deadRowsSQL returns the dead rows of task_live as the statistics have them.
const deadRowsSQL = `select pg_stat_get_dead_tuples('task_live'::regclass)`

// firstPendingSQL returns the first pending task of each bucket of queue $1, in claim order.
const firstPendingSQL = `
with recursive first (priority, retry_count, id) as (
    (select priority, retry_count, id from task_live where state = 1 and queue = $1 order by priority, retry_count, id limit 1)
    union all
    select next.* from first cross join lateral (
        select l.priority, l.retry_count, l.id from task_live l
        where l.state = 1 and l.queue = $1 and (l.priority, l.retry_count) > (first.priority, first.retry_count)
        order by l.priority, l.retry_count, l.id limit 1
    ) next
)
select priority, retry_count, id from first order by priority, retry_count`

// scan processes due tasks, as a claim does, and sets the marks of a queue. It runs in the background: no claim
// waits for it. If it fails, or if there are few dead rows so that claims were slow for another reason, marks are not
// used, and claims process due tasks themselves.
func (st *Store) scan(queue string) {
	ctx, cancel := context.WithTimeout(context.Background(), scanLimit)
	defer cancel()
	start := time.Now()
	var dead int64
	var swept Swept
	var pending []priorityBucket
	err := st.db.Hot.QueryRow(ctx, deadRowsSQL).Scan(&dead)
	inUse := dead >= manyDead
	if err == nil && (inUse || len(st.marks.of(queue)) > 0) {
		if swept, err = st.sweep(ctx, promoteRows, queue); err == nil {
			pending, err = st.firstPending(ctx, queue)
		}
	}
	below := st.marks.set(queue, pending, start, inUse && err == nil)
	for name, n := range swept.Pending {
		st.onPending(name, n)
	}
	if below > 0 {
		st.onPending(queue, below)
	}
}

// firstPending returns the buckets that have pending tasks, each with its first task as low.
func (st *Store) firstPending(ctx context.Context, queue string) (buckets []priorityBucket, err error) {
	var b priorityBucket
	err = store.QueryEach(ctx, st.db.Hot, firstPendingSQL, []any{queue}, []any{&b.priority, &b.retryCount, &b.low}, func() {
		buckets = append(buckets, b)
	})
	return buckets, err
}

// bucketColumns returns the arrays of claimAboveSQL, or nothing if there are no buckets.
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
