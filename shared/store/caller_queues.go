package store

import "slices"

// callerQueues is a fair queue: it has one FIFO queue for each caller, so that a caller with many
// items does not delay the others. The zero value is empty. It is not safe for concurrent use.
type callerQueues[T any] struct {
	byCaller map[int64][]T // queues that are not empty
	order    []int64       // callers with items; a caller is added at the end, and moves to the end when some of its items are taken
	total    int           // items of all callers
}

// push adds items to the end of a caller's queue.
func (q *callerQueues[T]) push(caller int64, items ...T) {
	if len(items) == 0 {
		return
	}
	if q.byCaller == nil {
		q.byCaller = map[int64][]T{}
	}
	if len(q.byCaller[caller]) == 0 {
		q.order = append(q.order, caller)
	}
	q.byCaller[caller] = append(q.byCaller[caller], items...)
	q.total += len(items)
}

// take removes and returns up to limit items, only of callers for which eligible returns true. At most an equal share of
// limit (at least one item) is taken of each of these callers, even if others have fewer items. The items of one caller stay
// together and in order.
func (q *callerQueues[T]) take(limit int, eligible func(caller int64) bool) []T {
	ready := 0
	for _, caller := range q.order {
		if eligible(caller) {
			ready++
		}
	}
	if ready == 0 {
		return nil
	}
	share := max(limit/ready, 1)
	var items []T
	var skipped, served []int64
	for _, caller := range q.order {
		if len(items) == limit || !eligible(caller) {
			skipped = append(skipped, caller)
			continue
		}
		queue := q.byCaller[caller]
		n := min(share, len(queue))
		items = append(items, queue[:n]...)
		clear(queue[:n]) // so that the items can be garbage-collected
		if n == len(queue) {
			delete(q.byCaller, caller)
			continue
		}
		q.byCaller[caller] = queue[n:]
		served = append(served, caller)
	}
	q.order = append(skipped, served...)
	q.total -= len(items)
	return items
}

// remove removes the caller's first item for which matches returns true, and reports whether there was such an item.
func (q *callerQueues[T]) remove(caller int64, matches func(T) bool) bool {
	queue := q.byCaller[caller]
	i := slices.IndexFunc(queue, matches)
	if i < 0 {
		return false
	}
	q.total--
	if queue = slices.Delete(queue, i, i+1); len(queue) > 0 {
		q.byCaller[caller] = queue
		return true
	}
	delete(q.byCaller, caller)
	q.order = slices.DeleteFunc(q.order, func(c int64) bool { return c == caller })
	return true
}
