package deliver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/store/messages"
)

const (
	maxInFlight = 128 // concurrent posts of a pipeline, of all its drains
	// claimInterval is how often a drain that waits for slow receivers claims what became due in other processes. A call
	// of deliver in this process makes it claim at once.
	claimInterval = time.Second
	maxRetryDelay = 10 * time.Second // before another drain, after errors in a row
)

// pipeline claims, posts and settles one kind of work: webhooks, or messages to URLs.
type pipeline[W any] struct {
	inFlight *inFlight[W]
	claim    func(ctx context.Context, inFlight []W) ([]W, error) // at most maxInFlight, those in flight included
	post     func(ctx context.Context, w W) attempt
	settle   func(ctx context.Context, posted []posted[W]) (locked []posted[W], err error) // locked must be settled again
}

// posted is a piece of work with the result of its post.
type posted[W any] struct {
	work W
	attempt
	id int
}

// drain posts what is due until nothing is, and returns how much it posted. If another drain of the pipeline is
// claiming, started is false and that one claims again. After until, after an error, when the caller has left, or when the
// process is to end, it claims nothing more, wakes another call, and waits for its own posts.
//
// Claims and posts do not end when the caller leaves, but only at the deadline of ctx: a trigger that dies would leave
// what was claimed for it leased.
func drain[W any](ctx context.Context, d *deliverer, until time.Time, p pipeline[W]) (n int, started bool, err error) {
	again, started := p.inFlight.start()
	if !started {
		return 0, false, nil
	}
	work, cancel := uncancelled(ctx)
	defer cancel()
	open, unsettled, results := true, 0, make(chan posted[W], maxInFlight) // unsettled counts posts of this drain
	for {
		if open && (err != nil || ctx.Err() != nil || time.Now().After(until) || d.isDraining()) {
			open = false
			d.env.WakeDeliverAt(time.Now().Add(p.inFlight.stop(err)))
		}
		if inFlight := p.inFlight.list(); open && len(inFlight) < maxInFlight {
			var claimed int
			claimed, err = p.startPosts(work, inFlight, results)
			n, unsettled = n+claimed, unsettled+claimed
		}
		switch {
		case unsettled > 0: // collect its result
		case !open:
			return n, true, err
		case err == nil && p.inFlight.stopUnlessAgain():
			return n, true, nil
		default:
			continue
		}
		batch := collect(results, again, open)
		if len(batch) == 0 {
			continue
		}
		locked, settleErr := settle(work, p, batch)
		if settleErr != nil {
			err = settleErr
		}
		unsettled -= len(batch) - len(locked)
		p.inFlight.remove(batch, locked)
		for _, l := range locked {
			time.AfterFunc(lockedPause, func() { results <- l })
		}
	}
}

// startPosts claims work and posts each piece in a goroutine, which sends its result. It returns how many it started.
func (p pipeline[W]) startPosts(ctx context.Context, inFlight []W, results chan<- posted[W]) (int, error) {
	claimed, err := p.claim(ctx, inFlight)
	for _, w := range claimed {
		id := p.inFlight.add(w)
		go func() { results <- posted[W]{w, recoverPanic(ctx, w, p.post), id} }()
	}
	return len(claimed), err
}

// uncancelled returns ctx with its deadline, but without its cancellation.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, bounded := ctx.Deadline(); bounded {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithoutCancel(ctx), func() {}
}

// recoverPanic posts and converts a panic to a failed attempt: one piece of work must not end the process.
func recoverPanic[W any](ctx context.Context, w W, post func(context.Context, W) attempt) (a attempt) {
	started := time.Now()
	defer func() {
		if r := recover(); r != nil {
			a = attempt{at: started, err: fmt.Sprint("panic: ", r)}
		}
	}()
	return post(ctx, w)
}

// collect waits for a result and returns all that there are. While open, it also returns when it is time to claim again.
func collect[T any](results <-chan T, again <-chan struct{}, open bool) (all []T) {
	var interval <-chan time.Time
	if open {
		timer := time.NewTimer(claimInterval)
		defer timer.Stop()
		interval = timer.C
	} else {
		again = nil
	}
	select {
	case result := <-results:
		all = append(all, result)
	case <-again:
	case <-interval:
	}
	for {
		select {
		case result := <-results:
			all = append(all, result)
		default:
			return all
		}
	}
}

// inFlight lets at most one drain of a pipeline claim at a time, and has the work of all its drains, including those
// that claim no more and only wait for their posts.
type inFlight[W any] struct {
	mu      sync.Mutex
	running bool          // a drain is claiming
	again   chan struct{} // signals that drain to claim again
	work    map[int]W     // by id
	lastID  int

	failures int // drains in a row that ended with an error
}

func newInFlight[W any]() *inFlight[W] {
	return &inFlight[W]{again: make(chan struct{}, 1), work: map[int]W{}}
}

// add adds a piece of work until it is removed by its id.
func (f *inFlight[W]) add(w W) (id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastID++
	f.work[f.lastID] = w
	return f.lastID
}

// remove removes the work of a batch, except that which is locked.
func (f *inFlight[W]) remove(batch, locked []posted[W]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range batch {
		delete(f.work, p.id)
	}
	for _, l := range locked {
		f.work[l.id] = l.work
	}
}

func (f *inFlight[W]) list() []W {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.work))
}

// start makes the caller the claiming drain, unless there is one: then that one is signalled to claim again.
func (f *inFlight[W]) start() (again <-chan struct{}, started bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running {
		select {
		case f.again <- struct{}{}:
		default:
		}
		return nil, false
	}
	f.running = true
	return f.again, true
}

// stop ends the claiming, also if the drain was signalled to claim again. It returns the delay until the
// next drain, which no new call may cause: those that signalled this one may have returned without an error.
func (f *inFlight[W]) stop(err error) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	f.takeAgain()
	if err == nil {
		f.failures = 0
		return 0
	}
	f.failures++
	return retry.Delay(time.Second, maxRetryDelay, f.failures)
}

// stopUnlessAgain ends the claiming, unless the drain was signalled to claim again.
func (f *inFlight[W]) stopUnlessAgain() (stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.takeAgain() {
		return false
	}
	f.running, f.failures = false, 0
	return true
}

func (f *inFlight[W]) takeAgain() bool {
	select {
	case <-f.again:
		return true
	default:
		return false
	}
}

const leaseMargin = 15 * time.Second // added to the timeout of a post

// limits applies to each pipeline separately. All callers of an account together have at most a quarter of the posts,
// however many endpoints and hosts they have.
var limits = messages.InFlightLimits{All: maxInFlight, Caller: maxInFlight / 4, Destination: maxInFlight / 8, Failing: maxInFlight / 4}

// lockedPause is the time until a result whose rows another transaction locks is settled again. No other result waits for it.
const lockedPause = 100 * time.Millisecond

// settle stores results, also after the call's own time has ended. Then those that are locked are lost: they are posted
// again when their leases end.
func settle[W any](ctx context.Context, p pipeline[W], batch []posted[W]) (locked []posted[W], err error) {
	settleCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	locked, err = p.settle(settleCtx, batch)
	if len(locked) > 0 && ctx.Err() != nil {
		return nil, fmt.Errorf("%d results could not be stored in the time of the call, as other transactions held their rows: %w", len(locked), ctx.Err())
	}
	return locked, err
}

func (d *deliverer) lease() time.Duration { return d.cfg.Timeout + leaseMargin }
