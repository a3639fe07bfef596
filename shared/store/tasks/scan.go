package tasks

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// scanLater schedules a scan in the background, unless one is scheduled.
func (st *Store) scanLater(queue string) {
	if in, ok := st.marks.schedule(queue); ok {
		time.AfterFunc(in, func() { st.scan(queue) })
	}
}

// promoteRows limits the due tasks that a claim processes.
const promoteRows = 100

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

// scan sweeps due tasks, as a claim does, and sets the marks of a queue. It runs in the background: no claim waits
// for it. If it fails, marks are not used, and claims sweep due tasks themselves. The same holds if there are few dead
// rows, since claims were slow for another reason then.
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
