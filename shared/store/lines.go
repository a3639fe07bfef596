package store

import "slices"

// lines is a queue with one line for each caller, so that a caller with much waiting
// does not delay the others. Its zero value is empty; whoever uses it holds a lock.
type lines[T any] struct {
	of    map[int64][]T // by caller; no entry for an empty line
	order []int64       // the callers that have a line; the one served longest ago is first
	total int
}

// push adds items to the end of a caller's line.
func (l *lines[T]) push(caller int64, items ...T) {
	if len(items) == 0 {
		return
	}
	if l.of == nil {
		l.of = map[int64][]T{}
	}
	if len(l.of[caller]) == 0 {
		l.order = append(l.order, caller)
	}
	l.of[caller] = append(l.of[caller], items...)
	l.total += len(items)
}

// take removes up to limit items: from each caller that may be served an equal part of
// limit, whether others have as much waiting or not. The items of one caller are
// together and in their order.
func (l *lines[T]) take(limit int, may func(caller int64) bool) []T {
	ready := 0
	for _, caller := range l.order {
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
	for _, caller := range l.order {
		if len(taken) == limit || !may(caller) {
			left = append(left, caller)
			continue
		}
		line := l.of[caller]
		n := min(part, len(line))
		taken = append(taken, line[:n]...)
		clear(line[:n]) // its array may be in use for long
		if n == len(line) {
			delete(l.of, caller)
			continue
		}
		l.of[caller] = line[n:]
		served = append(served, caller)
	}
	l.order = append(left, served...)
	l.total -= len(taken)
	return taken
}

// remove takes an item out of a caller's line and says whether it was there.
func (l *lines[T]) remove(caller int64, is func(T) bool) bool {
	line := l.of[caller]
	i := slices.IndexFunc(line, is)
	if i < 0 {
		return false
	}
	l.total--
	if line = slices.Delete(line, i, i+1); len(line) > 0 {
		l.of[caller] = line
		return true
	}
	delete(l.of, caller)
	l.order = slices.DeleteFunc(l.order, func(c int64) bool { return c == caller })
	return true
}
