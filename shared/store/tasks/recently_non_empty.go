package tasks

import "sync"

// maxNonEmpty limits the queues in recentlyNonEmpty.
const maxNonEmpty = 1000

// recentlyNonEmpty has the queues whose last claim in this process returned a task. When recentlyNonEmpty is full,
// it is cleared, which only costs time.
type recentlyNonEmpty struct {
	mu    sync.Mutex
	names map[string]bool
}

func (r *recentlyNonEmpty) has(queue string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[queue]
}

func (r *recentlyNonEmpty) set(queue string, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !found {
		delete(r.names, queue)
		return
	}
	if r.names == nil || len(r.names) >= maxNonEmpty {
		r.names = map[string]bool{}
	}
	r.names[queue] = true
}
