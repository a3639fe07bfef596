// Package waiters has the waiting long polls of this process, by queue. They are woken when tasks of their queue become
// pending. A woken poll may still find no task.
package waiters

import (
	"container/list"
	"sync"
)

// List has the waiters of all queues. Make it with New.
type List struct {
	mu     sync.Mutex
	queues map[string]*list.List // of *Waiter, oldest first; no entry if empty
}

// A Waiter is one waiting long poll. A Waiter is woken at most once: to wait again, register again.
type Waiter struct {
	C <-chan struct{} // receives one value when the waiter is woken

	woken   chan struct{}
	list    *List
	queue   string
	element *list.Element // of the list of the queue; nil once the waiter was removed
}

// New returns an empty List.
func New() *List { return &List{queues: map[string]*list.List{}} }

// Register adds a waiter. Call Register before the query for tasks, so that a task that is committed after the query
// wakes the waiter. The caller must call Close.
func (l *List) Register(queue string) *Waiter {
	woken := make(chan struct{}, 1)
	w := &Waiter{C: woken, woken: woken, list: l, queue: queue}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queues[queue] == nil {
		l.queues[queue] = list.New()
	}
	w.element = l.queues[queue].PushBack(w)
	return w
}

// Notify wakes at most n waiters of the queue, oldest first, and returns how many it has woken.
func (l *List) Notify(queue string, n int) (woken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for woken < n && l.queues[queue] != nil {
		l.wakeOldest(queue)
		woken++
	}
	return woken
}

// NotifyOnePerQueue wakes the oldest waiter of every queue.
func (l *List) NotifyOnePerQueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for queue := range l.queues {
		l.wakeOldest(queue)
	}
}

// wakeOldest wakes a waiter of a queue that has some; mu is held.
func (l *List) wakeOldest(queue string) {
	w := l.queues[queue].Front().Value.(*Waiter)
	l.remove(w)
	w.woken <- struct{}{} // never blocks: the buffer has room for the one value
}

// remove removes w from the list of its queue; mu is held.
func (l *List) remove(w *Waiter) {
	queue := l.queues[w.queue]
	queue.Remove(w.element)
	w.element = nil
	if queue.Len() == 0 {
		delete(l.queues, w.queue)
	}
}

// Close removes the waiter. If the waiter was woken but the poll has not received from C, the next
// waiter of the queue is woken instead.
func (w *Waiter) Close() {
	w.list.mu.Lock()
	if w.element != nil {
		w.list.remove(w)
	}
	w.list.mu.Unlock()
	select {
	case <-w.woken:
		w.list.Notify(w.queue, 1)
	default:
	}
}
