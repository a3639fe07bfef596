package store

import "slices"

// callerQueues has one queue for each caller, so that a caller with many items does not delay
// the others. The zero value is empty. It is not safe for concurrent use.
type callerQueues[T any] struct {
	of    map[int64][]T // by caller; no entry for an empty queue
	order []int64       // callers with a queue, the one served longest ago first
	total int
}

// push adds items to the end of a caller's queue.
func (q *callerQueues[T]) push(caller int64, items ...T) {
	if len(items) == 0 {
		return
	}
	if q.of == nil {
		q.of = map[int64][]T{}
	}
	if len(q.of[caller]) == 0 {
		q.order = append(q.order, caller)
	}
	q.of[caller] = append(q.of[caller], items...)
	q.total += len(items)
}

// take removes up to limit items: an equal part of limit from each caller for which may
// returns true, however much each has waiting. The items of one caller stay together and in
// order.
func (q *callerQueues[T]) take(limit int, may func(caller int64) bool) []T {
	ready := 0
	for _, caller := range q.order {
		if may(caller) {
			ready++
		}
	}
	if ready == 0 {
		return nil
	}
	part := max(limit/ready, 1)
	var taken []T
	var left, served []int64
	for _, caller := range q.order {
		if len(taken) == limit || !may(caller) {
			left = append(left, caller)
			continue
		}
		queue := q.of[caller]
		n := min(part, len(queue))
		taken = append(taken, queue[:n]...)
		clear(queue[:n]) // releases the memory
		if n == len(queue) {
			delete(q.of, caller)
			continue
		}
		q.of[caller] = queue[n:]
		served = append(served, caller)
	}
	q.order = append(left, served...)
	q.total -= len(taken)
	return taken
}

// remove removes an item from a caller's queue and reports whether it was there.
func (q *callerQueues[T]) remove(caller int64, is func(T) bool) bool {
	queue := q.of[caller]
	i := slices.IndexFunc(queue, is)
	if i < 0 {
		return false
	}
	q.total--
	if queue = slices.Delete(queue, i, i+1); len(queue) > 0 {
		q.of[caller] = queue
		return true
	}
	delete(q.of, caller)
	q.order = slices.DeleteFunc(q.order, func(c int64) bool { return c == caller })
	return true
}
