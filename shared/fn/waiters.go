package fn

import (
	"container/list"
	"sync"
)

// waiterList has the waiting long polls of this process by queue. notify wakes them when work
// became due, here or in another process. A wake-up is a hint: the poll may find nothing.
type waiterList struct {
	mu     sync.Mutex
	queues map[string]*list.List // of *Waiter, oldest first; no entry if empty
}

// A waiter is one long poll in line. It is woken at most once: to wait again,
// register again.
type Waiter struct {
	C <-chan struct{} // receives once when woken

	woken   chan struct{}
	hub     *waiterList
	queue   string
	element *list.Element // nil once out of line
}

func newWaiters() *waiterList { return &waiterList{queues: map[string]*list.List{}} }

// register puts a waiter in line. Do so before looking at the database: what
// is committed after the look then finds the waiter. Close must follow.
func (h *waiterList) register(queue string) *Waiter {
	woken := make(chan struct{}, 1)
	w := &Waiter{C: woken, woken: woken, hub: h, queue: queue}
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
	h.leave(w)
	w.woken <- struct{}{} // never blocks: the buffer has room for the one value
}

// Close leaves the line. A wake-up that was delivered but not received is
// passed on to the next waiter of the queue.
func (w *Waiter) Close() {
	w.hub.mu.Lock()
	if w.element != nil {
		w.hub.leave(w)
	}
	w.hub.mu.Unlock()
	select {
	case <-w.woken:
		w.hub.notify(w.queue, 1)
	default:
	}
}

// leave takes w out of line; mu is held.
func (h *waiterList) leave(w *Waiter) {
	line := h.queues[w.queue]
	line.Remove(w.element)
	w.element = nil
	if line.Len() == 0 {
		delete(h.queues, w.queue)
	}
}
