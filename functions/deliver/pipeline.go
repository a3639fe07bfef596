package deliver

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/store/messages"
)

const (
	maxInFlight   = 128                    // concurrent posts of a pipeline in one process, those of all its runs together
	claimInterval = time.Second            // how often a run that waits for slow receivers claims again
	lockedPause   = 100 * time.Millisecond // before the next try to settle a result whose rows another transaction has locked
	leaseMargin   = 15 * time.Second       // a lease is the timeout of a post plus this margin
)

// limits apply to each pipeline of each process separately. Account limits all callers of an account together (see the comment of the
// package), however many endpoints and hosts they use. Failing is for webhooks only.
var limits = messages.InFlightLimits{All: maxInFlight, Account: maxInFlight / 4, Destination: maxInFlight / 8, Failing: maxInFlight / 4}

// settleTime limits each call of pipeline.settle. A run stops claiming early enough for a post and this time.
const settleTime = 5 * time.Second

func (d *deliverer) lease() time.Duration { return d.cfg.Timeout + leaseMargin }

// pipeline claims, posts and settles one kind of work: webhooks, or messages to URLs.
type pipeline[W any] struct {
	inFlight *workInFlight[W]
	claim    func(ctx context.Context, inFlight []W) ([]W, error) // the result and inFlight together have at most maxInFlight
	post     func(ctx context.Context, w W) attempt
	settle   func(ctx context.Context, batch []posted[W]) (locked []posted[W], err error) // locked: results whose rows another transaction has locked; the caller must settle them again
}

// runPipeline claims, posts and settles work until nothing is due, and returns how many posts it started. If another run of the
// pipeline is claiming, started is false and that run claims again.
//
// A run stops claiming at claimUntil, after an error, when the client of the call has left, or when the process is draining. Then
// the run schedules another call of deliver, which continues to claim. The run itself waits for its own posts.
//
// Claims and posts are cancelled at the deadline of ctx, but not when the client leaves: if they were, the work that a call has claimed
// would wait for the end of its lease whenever a trigger dies.
func runPipeline[W any](ctx context.Context, d *deliverer, claimUntil time.Time, p pipeline[W]) (n int, started bool, err error) {
	claimAgain, started := p.inFlight.start()
	if !started {
		return 0, false, nil
	}
	deadline, _ := ctx.Deadline()
	workCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	r := &pipelineRun[W]{pipeline: p, results: make(chan posted[W], maxInFlight)}
	for err == nil && ctx.Err() == nil && !time.Now().After(claimUntil) && !d.env.IsDraining() {
		err = r.startPosts(workCtx)
		if r.unsettled > 0 {
			err = cmp.Or(r.settleResults(workCtx, collect(r.results, claimAgain, time.After(claimInterval))), err)
		} else if err == nil && p.inFlight.stopUnlessSignalled() {
			return r.posts, true, nil
		}
	}
	wait := p.inFlight.stop(err)
	d.env.WakeDeliverAt(time.Now().Add(wait))
	for r.unsettled > 0 {
		err = cmp.Or(r.settleResults(workCtx, collect(r.results, nil, nil)), err)
	}
	return r.posts, true, err
}

// pipelineRun is the state of one run of a pipeline.
type pipelineRun[W any] struct {
	pipeline[W]
	results   chan posted[W] // of the posts of this run
	posts     int            // posts started so far
	unsettled int            // posts whose result is not settled
}

// startPosts claims work if fewer than maxInFlight posts are in flight, and posts each piece in a goroutine, which sends the result
// to r.results.
func (r *pipelineRun[W]) startPosts(ctx context.Context) error {
	current := r.inFlight.list()
	if len(current) >= maxInFlight {
		return nil
	}
	claimed, err := r.claim(ctx, current)
	for _, w := range claimed {
		id := r.inFlight.add(w)
		go func() { r.results <- posted[W]{w, recoverPanic(ctx, w, r.post), id} }()
	}
	r.posts, r.unsettled = r.posts+len(claimed), r.unsettled+len(claimed)
	return err
}

// settleResults stores a batch of results, even after the deadline of the call. If another transaction has locked the rows of a
// result, settleResults sends the result to r.results again after lockedPause. After the deadline it drops such a result instead, and
// after an error of settle it drops the whole batch: the work is posted again when its lease ends.
func (r *pipelineRun[W]) settleResults(ctx context.Context, batch []posted[W]) error {
	if len(batch) == 0 {
		return nil
	}
	settleCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	locked, err := r.settle(settleCtx, batch)
	if len(locked) > 0 && ctx.Err() != nil {
		err = fmt.Errorf("%d results could not be stored before the deadline of the call, because other transactions locked their rows: %w", len(locked), ctx.Err())
		locked = nil
	}
	r.unsettled -= len(batch) - len(locked)
	r.inFlight.remove(batch, locked)
	for _, l := range locked {
		time.AfterFunc(lockedPause, func() { r.results <- l })
	}
	return err
}

// recoverPanic calls post, and converts a panic to a failed attempt.
func recoverPanic[W any](ctx context.Context, w W, post func(context.Context, W) attempt) (a attempt) {
	started := time.Now()
	defer func() {
		if r := recover(); r != nil {
			a = attempt{at: started, err: fmt.Sprint("panic: ", r)}
		}
	}()
	return post(ctx, w)
}

// collect waits until one of the channels is ready, and returns all results that are ready. A nil channel is never ready.
func collect[T any](results <-chan T, claimAgain <-chan struct{}, timeout <-chan time.Time) (all []T) {
	select {
	case result := <-results:
		all = append(all, result)
	case <-claimAgain:
	case <-timeout:
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
