package fn

import (
	"container/list"
	"sync"
)

// waiterList has the waiting long polls of this process by queue. They are woken when a task
// becomes due, here or in another process. After a wake-up a poll may still find nothing.
type waiterList struct {
	mu     sync.Mutex
	queues map[string]*list.List // of *Waiter, oldest first; no entry if empty
}

// A Waiter is one waiting long poll. It is woken at most once: to wait again, register again.
type Waiter struct {
	C <-chan struct{} // receives once when woken

	woken   chan struct{}
	all     *waiterList
	queue   string
	element *list.Element // of the list of its queue; nil once it was removed
}

func newWaiters() *waiterList { return &waiterList{queues: map[string]*list.List{}} }

// register adds a waiter. Call it before the query, so that a commit after the query wakes the
// waiter. The caller must call Close.
func (h *waiterList) register(queue string) *Waiter {
	woken := make(chan struct{}, 1)
	w := &Waiter{C: woken, woken: woken, all: h, queue: queue}
	h.mu.Lock()
	defer h.mu.Unlock()
	line := h.queues[queue]
	if line == nil {
		line = list.New()
		h.queues[queue] = line
	}
	w.element = line.PushBack(w)
	return w
}

// notify wakes at most n waiters of the queue, oldest first, each once.
func (h *waiterList) notify(queue string, n int) (woken int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for woken < n && h.queues[queue] != nil {
		h.wake(queue)
		woken++
	}
	return woken
}

// notifyEach wakes the oldest waiter of every queue.
func (h *waiterList) notifyEach() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for queue := range h.queues {
		h.wake(queue)
	}
}

// wake wakes the oldest waiter of a queue that has some; mu is held.
func (h *waiterList) wake(queue string) {
	w := h.queues[queue].Front().Value.(*Waiter)
	h.remove(w)
	w.woken <- struct{}{} // never blocks: the buffer has room for the one value
}

// Close removes the waiter. If it was woken and has not received from C, the next waiter of the
// queue is woken instead.
func (w *Waiter) Close() {
	w.all.mu.Lock()
	if w.element != nil {
		w.all.remove(w)
	}
	w.all.mu.Unlock()
	select {
	case <-w.woken:
		w.all.notify(w.queue, 1)
	default:
	}
}

// remove removes w from the list of its queue; mu is held.
func (h *waiterList) remove(w *Waiter) {
	line := h.queues[w.queue]
	line.Remove(w.element)
	w.element = nil
	if line.Len() == 0 {
		delete(h.queues, w.queue)
	}
}
