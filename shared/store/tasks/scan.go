package tasks

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// scanLater schedules a scan in the background, after several slow claims, unless a scan of the queue is already scheduled or running.
func (st *Store) scanLater(queue string) {
	if in, ok := st.marks.schedule(queue); ok {
		time.AfterFunc(in, func() { st.scan(queue) })
	}
}

// sweepRows is how many due tasks a claim or a scan in the background sweeps at most.
const sweepRows = 100

// deadRowsSQL returns the number of dead rows of task_live, from Postgres's statistics.
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

// scan sets the low-water marks of a queue (see lowWaterMarks). It runs in the background: no claim waits for it. While marks
// are used, claims do not sweep due tasks, so scan does. If the scan fails, marks are not used, and claims sweep again. Marks are
// not used either if there are few dead rows: then claims were slow for another reason.
func (st *Store) scan(queue string) {
	ctx, cancel := context.WithTimeout(context.Background(), scanLimit)
	defer cancel()
	start := time.Now()
	var dead int64
	var swept Swept
	var pending []priorityBucket
	err := st.db.Hot.QueryRow(ctx, deadRowsSQL).Scan(&dead)
	useMarks := dead >= manyDead
	if err == nil && (useMarks || len(st.marks.of(queue)) > 0) {
		if swept, err = st.sweep(ctx, sweepRows, queue); err == nil {
			pending, err = st.firstPending(ctx, queue)
		}
	}
	missedBuckets := st.marks.set(queue, pending, start, useMarks && err == nil)
	for name, n := range swept.Pending {
		st.onPending(name, n)
	}
	if missedBuckets > 0 { // claims would not have found at least one task of each
		st.onPending(queue, missedBuckets)
	}
}

// firstPending returns the buckets that have pending tasks. In them, low is the id of the first pending task.
func (st *Store) firstPending(ctx context.Context, queue string) (buckets []priorityBucket, err error) {
	var b priorityBucket
	err = store.QueryEach(ctx, st.db.Hot, firstPendingSQL, []any{queue}, []any{&b.priority, &b.retryCount, &b.low}, func() {
		buckets = append(buckets, b)
	})
	return buckets, err
}
