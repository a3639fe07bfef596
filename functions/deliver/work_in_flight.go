package deliver

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/retry"
)

const maxRetryDelay = 10 * time.Second // upper limit of the wait for the next run after failed runs

// posted is a piece of work with the result of its post. id is the work's id in workInFlight.
type posted[W any] struct {
	work W
	attempt
	id int
}

// workInFlight has the work that all runs of a pipeline have claimed and not settled. At most one run claims at a time; other runs
// may still wait for their posts.
type workInFlight[W any] struct {
	mu         sync.Mutex
	claiming   bool          // a run is claiming
	claimAgain chan struct{} // signals the claiming run to claim again
	work       map[int]W     // by id
	lastID     int
	failures   int // runs in a row that ended with an error
}

func newWorkInFlight[W any]() *workInFlight[W] {
	return &workInFlight[W]{claimAgain: make(chan struct{}, 1), work: map[int]W{}}
}

// add adds a piece of work and returns its id.
func (f *workInFlight[W]) add(w W) (id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastID++
	f.work[f.lastID] = w
	return f.lastID
}

// remove removes the work of a batch, except the locked work.
func (f *workInFlight[W]) remove(batch, locked []posted[W]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range batch {
		delete(f.work, p.id)
	}
	for _, l := range locked {
		f.work[l.id] = l.work
	}
}

func (f *workInFlight[W]) list() []W {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.work))
}

// start makes the caller the claiming run. If another run is claiming, start signals that run to claim again instead.
func (f *workInFlight[W]) start() (claimAgain <-chan struct{}, started bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.claiming {
		select {
		case f.claimAgain <- struct{}{}:
		default:
		}
		return nil, false
	}
	f.claiming = true
	return f.claimAgain, true
}

// stop ends the claiming, even if the run was signalled to claim again. The caller must schedule another run after wait: the calls
// that signalled this run may have returned without an error, and then nothing else schedules a run soon.
func (f *workInFlight[W]) stop(err error) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claiming = false
	f.takeSignal()
	if err == nil {
		f.failures = 0
		return 0
	}
	f.failures++
	return retry.Delay(time.Second, maxRetryDelay, f.failures)
}

// stopUnlessSignalled ends the claiming, unless the run was signalled to claim again.
func (f *workInFlight[W]) stopUnlessSignalled() (stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.takeSignal() {
		return false
	}
	f.claiming, f.failures = false, 0
	return true
}

// takeSignal removes the signal to claim again, and reports whether there was one.
func (f *workInFlight[W]) takeSignal() bool {
	select {
	case <-f.claimAgain:
		return true
	default:
		return false
	}
}
