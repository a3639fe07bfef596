package tasks

import (
	"cmp"
	"context"
	"math"
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
// So a process keeps in memory the position that claims have reached in each priority bucket of a
// queue. When scans of the whole queue are slow because of dead rows, claims start at these
// low-water marks, and only a scan in the background reads what is below them. It takes at most a part
// of 1/scanFactor of the time, sets the marks again, and also processes due tasks. A task that
// becomes pending below a mark, for example a retry, waits for the next scan: up to scanLimit. Marks are
// not stored in the database.
const (
	slowScan   = 20 * time.Millisecond
	slowInARow = 3      // slow scans before a scan in the background decides whether marks are used
	manyDead   = 20_000 // dead rows of task_live from which marks are used
	scanFactor = 20     // time between two scans, in durations of a scan
	scanLimit  = 10 * time.Second
	markMargin = time.Second // for ids that are made before, but committed after those that were claimed
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

// maxMarkedQueues limits the queues in lowWaterMarks. When it is full it is cleared: claims then start at
// the head again.
const maxMarkedQueues = 1000

// queue must be called with mu held.
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

// observe records how long a scan from the head of the queue took, and reports whether there were several
// slow ones in a row. A fast scan that found nothing does not count, since a claim does not scan a paused queue.
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
		low := lowBefore(c.ID.Time())
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

func lowBefore(t time.Time) task.ID { return task.IDFloor(t.Add(-markMargin)) }

// schedule reports whether to start a scan in the background, and when. There is one at a time.
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

// known returns the buckets of a queue, in claim order, whether its marks are in use or not.
func (m *lowWaterMarks) known(queue string) []priorityBucket {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.queue(queue).buckets)
}

// set ends a scan: it sets the marks that the scan found, and the time until the next one. The marks of other
// buckets, which claims added meanwhile, stay as they are.
func (m *lowWaterMarks) set(queue string, found []priorityBucket, inUse bool, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	q.scheduled, q.interval, q.inUse = false, min(scanFactor*took, scanLimit), inUse && len(q.buckets) > 0
	if !q.inUse {
		q.slow, q.interval = 0, 0
	}
	for _, f := range found {
		for i := range q.buckets {
			if b := &q.buckets[i]; b.priority == f.priority && b.retryCount == f.retryCount {
				b.low = f.low
			}
		}
	}
}

// scanLater makes sure that a scan in the background follows.
func (st *Store) scanLater(queue string) {
	if in, ok := st.marks.schedule(queue); ok {
		time.AfterFunc(in, func() { st.scan(queue) })
	}
}

// firstPendingSQL returns the first pending task of each bucket of queue $1, and the dead rows of the table as the
// statistics have them.
const firstPendingSQL = `
select first.id, pg_stat_get_dead_tuples('task_live'::regclass)
from unnest($2::smallint[], $3::smallint[]) with ordinality as bucket (priority, retry_count, nr)
left join lateral (
    select id from task_live l
    where l.state = 1 and l.queue = $1 and l.priority = bucket.priority and l.retry_count = bucket.retry_count
    order by l.id limit 1
) first on true
order by nr`

// scan processes due tasks, as a claim does, and sets the marks of a queue. It runs in the background: no claim
// waits for it. If it fails, marks are not used: the next claim scans itself, and reports the error.
func (st *Store) scan(queue string) {
	ctx, cancel := context.WithTimeout(context.Background(), scanLimit)
	defer cancel()
	start := time.Now()
	buckets := st.marks.known(queue)
	swept, err := st.sweep(ctx, promoteRows, queue)
	var dead int64
	below := 0
	if err == nil {
		dead, below, err = st.findFirstPending(ctx, queue, buckets, lowBefore(start))
	}
	if err != nil {
		dead, buckets = 0, nil
	}
	st.marks.set(queue, buckets, dead >= manyDead, time.Since(start))
	for name, n := range swept.Pending {
		st.onPending(name, n)
	}
	if below > 0 {
		st.onPending(queue, below)
	}
}

// findFirstPending sets each bucket's mark to its first pending task, or to none if it has none: what becomes pending
// later has a newer id. It counts the buckets with a pending task below their former mark.
func (st *Store) findFirstPending(ctx context.Context, queue string, buckets []priorityBucket, none task.ID) (dead int64, below int, err error) {
	rows, _ := st.db.Hot.Query(ctx, firstPendingSQL, queue,
		store.Column(buckets, func(b priorityBucket) int16 { return b.priority }), store.Column(buckets, func(b priorityBucket) int16 { return b.retryCount }))
	var first *task.ID
	i := 0
	err = store.Each(rows, []any{&first, &dead}, func() {
		low := none
		if first != nil && first.Compare(none) < 0 {
			low = *first
		}
		if low.Compare(buckets[i].low) < 0 {
			below++
		}
		buckets[i].low = low
		i++
	})
	return dead, below, err
}

// rangeColumns returns the arrays of claimAboveSQL: one range of the index from each mark to the start of the
// next bucket, after one for what comes before the first bucket. So buckets that are not known are read whole.
func rangeColumns(buckets []priorityBucket) []any {
	starts := slices.Concat([]priorityBucket{{priority: math.MinInt16}}, buckets)
	ends := slices.Concat(buckets, []priorityBucket{{priority: math.MaxInt16}})
	priority, retryCount := func(b priorityBucket) int16 { return b.priority }, func(b priorityBucket) int16 { return b.retryCount }
	return []any{
		store.Column(starts, priority), store.Column(starts, retryCount), store.Column(starts, func(b priorityBucket) task.ID { return b.low }),
		store.Column(ends, priority), store.Column(ends, retryCount),
	}
}
