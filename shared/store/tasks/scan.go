package tasks

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// scanLater schedules a scan of the queue in the background, unless one is already scheduled or running.
func (st *Store) scanLater(queue string) {
	if in, ok := st.marks.schedule(queue); ok {
		time.AfterFunc(in, func() { st.scan(queue) })
	}
}

// sweepRows is the limit of a sweep that a claim or a scan in the background makes (see Store.sweep).
const sweepRows = 100

// deadRowsSQL returns Postgres's estimate of the number of dead rows in task_live.
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

// scan sets the low-water marks of a queue (see low_water_marks.go). It runs in the background: no claim waits for it.
// While marks are in use, claims do not sweep due tasks, so scan does. After a scan that fails, or that finds fewer
// than manyDead dead rows, marks are not in use: claims start at the head of the queue and sweep again.
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
	missedBuckets := st.marks.endScan(queue, pending, start, useMarks && err == nil)
	for name, n := range swept.Pending {
		st.onPending(name, n)
	}
	if missedBuckets > 0 { // in each of them, claims would have missed at least one task
		st.onPending(queue, missedBuckets)
	}
}

// firstPending returns the buckets of a queue that have pending tasks. Their low is the id of the first pending task.
func (st *Store) firstPending(ctx context.Context, queue string) (buckets []priorityBucket, err error) {
	var b priorityBucket
	err = store.QueryEach(ctx, st.db.Hot, firstPendingSQL, []any{queue}, []any{&b.priority, &b.retryCount, &b.low}, func() {
		buckets = append(buckets, b)
	})
	return buckets, err
}
