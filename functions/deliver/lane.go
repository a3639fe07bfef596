package deliver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	laneWidth = 128 // calls of one kind at once, of all drains
	// lookEvery is how soon a drain that waits for slow receivers looks for what
	// became due in other processes; what this one is told of it looks for at once.
	lookEvery = time.Second
)

// lane is one kind of what is posted: how to get hold of it, how to post it, how
// to keep what came of it.
type lane[W any] struct {
	desk   *desk[W]
	claim  func(ctx context.Context, inHand []W) ([]W, error) // at most laneWidth with those in hand
	post   func(ctx context.Context, w W) attempt
	settle func(ctx context.Context, posted []posted[W]) error
}

// posted is one piece of work and what came of it.
type posted[W any] struct {
	work W
	attempt
	ticket int
}

// drain posts what is due until nothing is, and counts it. When a drain of this
// lane is at work already, that one looks again instead, and first is false.
// After until, or when the process is to end, it begins nothing more, has another
// call go on, and waits for the receivers that it still has in hand.
func drain[W any](ctx context.Context, d *deliverer, until time.Time, l lane[W]) (n int, first bool, err error) {
	look, first := l.desk.sit()
	if !first {
		return 0, false, nil
	}
	open, mine, landed := true, 0, make(chan posted[W], laneWidth)
	for {
		if open && (err != nil || time.Now().After(until) || d.isDraining()) {
			open = false
			l.desk.leave()
			if err == nil {
				d.env.WakeDeliverAt(time.Time{})
			}
		}
		if inHand := l.desk.inHand(); open && len(inHand) < laneWidth {
			var claimed []W
			claimed, err = l.claim(ctx, inHand)
			for _, w := range claimed {
				ticket := l.desk.take(w)
				go func() { landed <- posted[W]{w, safely(ctx, w, l.post), ticket} }()
			}
			n, mine = n+len(claimed), mine+len(claimed)
		}
		switch {
		case mine > 0:
		case !open:
			return n, true, err
		case err == nil && l.desk.leaveUnlessTold():
			return n, true, nil
		default:
			continue
		}
		batch := collect(landed, look, open)
		mine -= len(batch)
		l.desk.release(batch)
		if len(batch) > 0 {
			if settled := d.settle(ctx, func(ctx context.Context) error { return l.settle(ctx, batch) }); settled != nil {
				err = settled
			}
		}
	}
}

// safely makes a failure of a panic: one piece of work must not end the process.
func safely[W any](ctx context.Context, w W, post func(context.Context, W) attempt) (a attempt) {
	began := time.Now()
	defer func() {
		if r := recover(); r != nil {
			a = attempt{at: began, err: fmt.Sprint("panic: ", r)}
		}
	}()
	return post(ctx, w)
}

// collect waits until something landed and takes all of it. While more may be
// claimed it does not wait for that alone.
func collect[T any](landed <-chan T, look <-chan struct{}, open bool) (all []T) {
	var again <-chan time.Time
	if open {
		timer := time.NewTimer(lookEvery)
		defer timer.Stop()
		again = timer.C
	} else {
		look = nil
	}
	select {
	case one := <-landed:
		all = append(all, one)
	case <-look:
	case <-again:
	}
	for {
		select {
		case one := <-landed:
			all = append(all, one)
		default:
			return all
		}
	}
}

// desk is where at most one drain of a lane sits and is told to look again. It knows
// what all drains of the lane have in hand, those too that have left and only wait for
// their receivers.
type desk[W any] struct {
	mu      sync.Mutex
	taken   bool
	told    chan struct{}
	hand    map[int]W // by ticket
	tickets int
}

func newDesk[W any]() *desk[W] { return &desk[W]{told: make(chan struct{}, 1), hand: map[int]W{}} }

// take adds a piece of work to what is in hand, until its ticket is released.
func (d *desk[W]) take(w W) (ticket int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tickets++
	d.hand[d.tickets] = w
	return d.tickets
}

func (d *desk[W]) release(batch []posted[W]) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range batch {
		delete(d.hand, p.ticket)
	}
}

func (d *desk[W]) inHand() []W {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.hand))
}

// sit takes the desk, or tells whoever sits there to look again.
func (d *desk[W]) sit() (look <-chan struct{}, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken {
		select {
		case d.told <- struct{}{}:
		default:
		}
		return nil, false
	}
	d.taken = true
	return d.told, true
}

// leave frees the desk; what it was told is the next one's.
func (d *desk[W]) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = false
	d.hear()
}

// leaveUnlessTold frees the desk unless there is reason to look again.
func (d *desk[W]) leaveUnlessTold() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hear() {
		return false
	}
	d.taken = false
	return true
}

func (d *desk[W]) hear() bool {
	select {
	case <-d.told:
		return true
	default:
		return false
	}
}
